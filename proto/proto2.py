import sys; sys.path.insert(0, __file__.rsplit("/",1)[0])
from proto import *
Native=Ring
def pct(t,*q): t=sorted(t); return [round(t[min(len(t)-1,int(len(t)*x))],2) for x in q]
def rtt(r,n,i=0):
    p=np.arange(8,dtype=U8).tobytes(); t=[]; c=r.call; want=(np.arange(8,dtype=U8)+U8(1)).tobytes()
    for _ in range(n//10): f,m=c(i,p,20.0); assert f==0 and m[1]==want,(f,m)
    for _ in range(n):
        a=time.perf_counter_ns(); f,m=c(i,p,20.0); t.append((time.perf_counter_ns()-a)/1e3); assert f==0
    return pct(t,.5,.9,.99,.999)
quick=gp.get_device_info()["name"].lower().find("h200")<0
n=200 if quick else 20000
r=Native([0],1,0); r.up(); r.go(); print("rtt dedicated p50 90 99 99.9",rtt(r,n)); time.sleep(.01); print(r.fig())
assert r.L.set_mode(0,2,5.0); r.send(0,bytes(64)); assert r.L.receive(0,0.2) is None; assert r.L.set_mode(0,1,5.0); assert r.L.receive(0,5.0)
t=[]
for _ in range(5 if quick else 200):
    a=time.perf_counter_ns(); r.down(); b=time.perf_counter_ns(); r.up(); r.call(0,bytes(64),20.0); c=time.perf_counter_ns(); t.append(((b-a)/1e3,(c-b)/1e3,(c-a)/1e3))
for k,name in enumerate(("leave","relaunch+call","both")): print("park",name,pct([x[k] for x in t],.5,.9,.99))
assert r.L.set_mode(0,3,5.0); print("drained",r.fig()); r.close()
r=Native([0],0,1); r.up(); r.go(); print("rtt run queue",rtt(r,n)); r.close()
for stages in (1,16):
    r=Native([0]*stages,stages,0,chain=True); r.up(); r.go()
    def trip(r,n):
        t=[]
        for _ in range(n):
            a=time.perf_counter_ns(); r.send(0,bytes(64)); m=r.L.receive(stages-1,20.0); t.append((time.perf_counter_ns()-a)/1e3); assert m and m[1][0]==stages,m
        return pct(t,.5,.99)
    print("chain dedicated",stages,trip(r,n//4)); r.close()
for stages,w in ((1,1),(16,1),(16,4),(16,16)):
    r=Native([0]*stages,0,w,chain=True); r.up(); r.go(); print("chain run queue",stages,"workers",w,trip(r,n//4)); r.close()
for types,threads,what in (([0],32,"sequential"),([1],256,"batch256"),([1],512,"batch512")):
    r=Native(types,1,0,threads=threads,bulk=1<<(8 if quick else 15)); r.up(); r.go()
    M=2000 if quick else (400000 if types==[0] else 16000000); B=256 if quick else 8192
    rows=np.zeros((B,64),np.uint8); out=np.zeros((B,64),np.uint8)
    def sender():
        left=M
        while left>0:
            k=min(B,left); d,f=r.L.send_rows(0,rows[:k],r.ids(k),20.0); assert f==0; left-=d
    th=threading.Thread(target=sender); a=time.perf_counter(); th.start(); got=0
    while got<M:
        k=r.L.receive_into(0,out,64,20.0); assert k; got+=k
    d=time.perf_counter()-a; th.join()
    if types==[1] and not quick:
        # the host alone, and the device alone
        b=time.perf_counter(); k=0
        while k<30000: dn,f=r.L.send_rows(0,rows[:5000],r.ids(5000),20.0); k+=dn
        s1=time.perf_counter()-b; time.sleep(.05); b=time.perf_counter(); k=0
        while k<30000: k+=r.L.receive_into(0,out,64,20.0)
        print("   send alone M/s",round(30000/s1/1e6,2),"receive alone",round(30000/(time.perf_counter()-b)/1e6,2))
    print("throughput",what,round(M/d/1e6,3),"M/s"); r.close()
