import numpy as np, pygpukit as gp, time, sys, os, statistics, threading
from pygpukit import _pygpukit_rust as N
U4,U8=np.uint32,np.uint64
SLOTS=[("base",U8),("mask",U4),("words",U4)]
PORT=np.dtype([("slots",np.dtype(SLOTS)),("head",U8),("at",U8),("seen",U8)])
BULK=np.dtype([(n,U8) for n in "base mask stride tail head at seen".split()])
BOX=np.dtype([("word",U8),("head",U8),("generation",U8),("drain_at",U8),("wanted",U4),("s0",U4),("s1",U8,11),("slots",np.dtype(SLOTS)),("accepts",U4),("full",U4),("dedicated",np.uint16),("single",np.uint16),("s2",U4),("s3",U8,12)])
ROUTE=np.dtype([("slots",np.dtype(SLOTS)),("to",U4),("type",U4),("at",U8),("seen",U8)])
OWNER=np.dtype([("head",U8),("type",U4),("mode",U4),("answered",U8),("restarts_left",U8),("in",PORT),("out",PORT),("bulk_in",BULK),("bulk_out",BULK),("taken",U8),("window",U8),("out_sent",U8),("out_taken",U8),("seen",U8),("state",U8),("initial",U8),("state_bytes",U8),("outbox",U8),("waiting",U4),("outbox_size",U4),("outbox_stride",U8),("limit",U8),("next_id",U8)]+[(n,U8) for n in "processed from_host sent dropped dead failed restarts busy deepest shown".split()]+[("failing",U4),("spare",U4,3),("route",ROUTE)])
PLAN=np.dtype([("actors",U4),("dedicated",U4),("idle_ns",U4),("idle_common_ns",U4),("queue",U8),("queue_mask",U8),("boxes",U8),("owners",U8),("common_out",PORT)]+([("pad",U8)]))
ENGINE=np.dtype([("leaving",U4),("s0",U4,31),("queue_tail",U8),("s1",U8,15),("queue_head",U8),("s2",U8,15),("out_tail",U8),("out_seen",U8),("s3",U8,14),("left",U4),("s4",U4,3),("common_in",PORT),("s5",U8),("plan",PLAN),("orders_tail",U8),("host_beat",U8),("orders_head",U8),("beat",U8),("exited",U8),("orders",U8),("orders_mask",U8),("orders_taken",U8),("lease_ns",U8),("slice_ns",U8),("clock",U8),("s6",U8)])
SRC="""
#include <pygpukit/ring_serve.cuh>
static_assert(sizeof(ring::Owner)==%d && sizeof(ring::Engine)==%d, "layout");
struct alignas(16) Msg { static const unsigned TYPE = 7; unsigned long long x[8]; };
using ring::Context;
namespace a0 { struct State { unsigned long long count; unsigned long long pad; };
__device__ void handle(const Msg& in, Msg& out, State& state, Context& ctx) {
  for (int i = ctx.lane; i < 8; i += ctx.width) out.x[i] = in.x[i] + 1;
  ctx.sync(); if (ctx.lane == 0) state.count++;
  if (NEXT == ring::HOST) ctx.reply(out); else ctx.send(ctx.id() + 1 < LAST ? ctx.id() + 1 : ring::HOST, out);
} }
namespace a1 { struct State { unsigned long long count; unsigned long long pad; };
__device__ void handle_batch(const ring::Batch<Msg, Msg>& b, State& state, Context& ctx) {
  for (unsigned i = ctx.lane; i < b.size; i += ctx.width) { const uint4* f=(const uint4*)&b.in(i); uint4* t=(uint4*)&b.out(i); uint4 v=f[0], v1=f[1], v2=f[2], v3=f[3]; v.x+=1; t[0]=v; t[1]=v1; t[2]=v2; t[3]=v3; }
  if (ctx.lane==0) state.count += b.size;
} }
struct Program {
  static __device__ void dispatch(unsigned type, Context& ctx, char* out) { a0::handle(*(const Msg*)(ctx.message+1), *(Msg*)out, *(a0::State*)ctx.owner->state, ctx); }
  static __device__ void dispatch_batch(unsigned type, Context& ctx, ring::Run& run) { ring::Batch<Msg,Msg> b; b.run=run; b.size=run.size; a1::handle_batch(b, *(a1::State*)ctx.owner->state, ctx); }
  static __device__ bool takes_batches(unsigned type) { return type == 1; }
  static __device__ unsigned reply_type(unsigned type) { return Msg::TYPE; }
  static __device__ unsigned reply_bytes(unsigned type) { return sizeof(Msg); }
};
extern "C" __global__ void ring_kernel(ring::Engine* engine, unsigned long long launch) { __shared__ __align__(16) char out[64]; __shared__ __align__(16) unsigned stage[8*28]; ring::run<Program>(engine, launch, stage, 28, out); }
"""%(OWNER.itemsize,ENGINE.itemsize)
assert BOX.itemsize==256 and OWNER.itemsize%16==0,(OWNER.itemsize,)
def p2(n): return 1<<(n-1).bit_length()
class Ring:
    def __init__(self, types, dedicated, workers, threads=32, cap=64, chain=False, inlet=256, window=None, lease=0, bulk=1<<14, slice_ns=0, full=0):
        n=len(types); self.n=n; W=32; self.keep=[]; self.dedicated=dedicated
        def dev(a): g=gp.from_numpy(np.ascontiguousarray(a).view(np.uint8).reshape(-1)); self.keep.append(g); return g
        def zeros(b): g=gp.zeros(b,dtype="uint8"); self.keep.append(g); return g
        P=lambda g:int(g.data_ptr) if hasattr(g,"data_ptr") else int(g.ptr)
        def pinned(b): a=gp.empty_pinned((b,),dtype="uint8"); a[:]=0; self.keep.append(a); return a
        words=pinned(4096); base=words.ctypes.data; self.words=words.view(U8)
        orders=pinned(64*64)
        def ring(cap): a=pinned(cap*W*8); c=pinned(128); return (c.ctypes.data,a.ctypes.data,cap,W)
        def port(r): return ((r[1],r[2]-1,r[3]),r[0],0,0)
        def plain(cap): a=pinned(cap*112); c=pinned(256); return (c.ctypes.data,c.ctypes.data+128,a.ctypes.data,cap,112)
        def bulkp(r): return (r[2],r[3]-1,r[4],r[0],r[1],0,0)
        cin,cout=ring(inlet),ring(4096)
        self.seen=pinned(128*n); self.taken=pinned(8*n)
        box=np.zeros(n,BOX); own=np.zeros(n,OWNER); mail=zeros(n*cap*W*8); st=zeros(16*n); ini=zeros(16*n+4096); self.ini=ini; ob=zeros(n*8*112)
        self.state=st
        acts=[]
        for i,t in enumerate(types):
            b,o=box[i],own[i]; b["slots"]=(P(mail)+i*cap*W*8,cap-1,W); b["accepts"]=7; b["dedicated"]=i<dedicated
            b["single"]=chain and 0<i<dedicated; o["route"]["to"]=0xfffffffe; o["type"]=t; o["restarts_left"]=5; o["taken"]=self.taken.ctypes.data+8*i; o["window"]=window or 2048; o["seen"]=self.seen.ctypes.data+128*i; o["state"]=P(st)+16*i; o["initial"]=P(ini)+16*i; o["state_bytes"]=16; o["outbox"]=P(ob)+i*8*112; o["outbox_size"]=8; o["outbox_stride"]=112; o["limit"]=cap
            e_own=e_bulk=None
            if t==1: e_bulk=(plain(bulk),plain(bulk)); o["bulk_in"]=bulkp(e_bulk[0]); o["bulk_out"]=bulkp(e_bulk[1])
            elif i<dedicated: e_own=(ring(inlet),ring(inlet)); o["in"]=port(e_own[0]); o["out"]=port(e_own[1])
            if not i<dedicated: b["word"]=1
            acts.append((self.seen.ctypes.data+128*i,self.taken.ctypes.data+8*i,e_own,e_bulk,cap//2,full,64,7,None))
        q=p2(2*(n+workers+1)); cells=np.zeros(q,U8); sh=n-dedicated
        for k in range(q): cells[k]=((k+1)<<32|(dedicated+k)) if k<sh else (k<<32|0xfffffffe)
        self.q=dev(cells)
        e=np.zeros(1,ENGINE); E=e[0]; L=E["plan"]; L["actors"]=n; L["dedicated"]=dedicated; self.blocks=1+dedicated+workers; L["queue"]=P(self.q); L["queue_mask"]=q-1; E["queue_tail"]=sh
        self.box=dev(box); self.own=dev(own); L["boxes"]=P(self.box); L["owners"]=P(self.own); E["common_in"]=port(cin); L["common_out"]=port(cout)
        E["orders_tail"]=base; E["host_beat"]=base+128; E["orders_head"]=base+256; E["beat"]=base+384; E["exited"]=base+512; E["orders"]=orders.ctypes.data; E["orders_mask"]=63; E["lease_ns"]=lease; E["slice_ns"]=slice_ns; E["clock"]=base+640; L["idle_ns"]=4000; L["idle_common_ns"]=20000
        self.eng=dev(e)
        src=SRC.replace("NEXT","ring::HOST" if not chain else "0u").replace("LAST",f"{n}u")
        self.k=gp.jit(src,func="ring_kernel"); self.threads=threads; self.id=1
        self.L=N.RingLink((cin,cout),(base,base+256,orders.ctypes.data,64),(base+128,base+384),base+512,base+640,self.keep)
        for a in acts: self.L.add(*a)
        gp.synchronize(); self.L.program(self.k,P(self.eng),self.blocks,threads,0)
    def ids(self,n=1): self.id+=n; return self.id-n
    def call(self,i,p,t): return self.L.call(i,p,self.ids(),1,t)
    def send(self,i,p): return self.L.send(i,p,self.ids())
    def up(self): self.L.up()
    def down(self): ok=self.L.down(20.0); assert ok,"leave"
    def close(self): assert self.L.stop(20.0)
    def go(self,mode=1):
        for i in range(self.n): assert self.L.set_mode(i,mode,20.0),(i,self.L.figures(i))
    def fig(self,i=0): return dict(self.L.figures(i))
