use crate::emulator::testing::{Arg, run};
use std::time::Instant;

#[test]
#[ignore]
fn bench() {
    let list = std::env::var("BENCH").unwrap_or_default();
    for line in list.split('|') {
        let line = line.trim();
        let body: String = (0..64).map(|i| format!("    {line};\n").replace('$', &format!("{}", i % 8))).collect();
        let text = format!(
            "
.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 n) {{
    .reg .pred %p<9>, %go;
    .reg .b16 %h<20>;
    .reg .b32 %r<20>, %n, %i, %t;
    .reg .f32 %f<20>;
    .reg .b64 %d<20>;
    ld.param.u32 %n, [n];
    mov.u32 %t, %tid.x;
    setp.gt.u32 %go, %t, 3;
    mov.u32 %i, 0;
    mov.f32 %f8, 0f3f800001;
    mov.f32 %f9, 0f3f800003;
    mov.f32 %f10, 0f3f800003;
    mov.b64 %d8, 0x3ff0000000000001;
    mov.b64 %d9, 0x3ff0000000000001;
    mov.b64 %d10, 0x3ff0000000000001;
    mov.b16 %h8, 0x3c01;
    mov.b16 %h9, 0x3c01;
    mov.b16 %h10, 0x3c01;
    mov.b32 %r8, 0x3c013c01;
    mov.b32 %r9, 0x3c013c01;
    mov.b32 %r10, 0x3c013c01;
LOOP:
{body}
    add.u32 %i, %i, 1;
    setp.lt.u32 %p8, %i, %n;
    @%p8 bra LOOP;
    ret;
}}
"
        );
        let mut out = [0u64; 4];
        let n = 300;
        let mut best = f64::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            run(&text, "k", 1, 32, &[Arg::to(&mut out), Arg::Word(n)]).unwrap();
            let ns = start.elapsed().as_nanos() as f64 / f64::from(n) / 67.0;
            best = best.min(ns);
        }
        let ns = best;
        println!("{ns:8.1} ns  {line}");
    }
}
