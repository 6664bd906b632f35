//! One instruction on many operands: a kernel around it, and what each thread stored.

use crate::emulator::exec::lanes::BASELINE;
use crate::emulator::testing::Case;
use crate::random::Random;

/// Threads of a test: full warps, and one that is not.
pub(super) const THREADS: usize = 32 * 6 + 13;

/// What a lane keeps that a guard left out.
const KEPT: u64 = 0x0123_4567_89ab_cdef;

/// Run `code` (with `%d`, `%a`, `%b`, `%c`, and predicates `%p`, `%q`) for each case, `bits` wide: d, a, b and c.
///
/// It runs under a guard too; lanes it leaves out must keep their destination. The baseline must agree.
pub(super) fn apply(code: &str, bits: [u32; 4], cases: &[[u64; 3]]) -> Vec<u64> {
    let all = launch(code, bits, cases, false);
    let guarded = launch(code, bits, cases, true);
    BASELINE.set(true);
    let baseline = [launch(code, bits, cases, false), launch(code, bits, cases, true)];
    BASELINE.set(false);
    for (case, (wide, narrow)) in cases.iter().zip(all.iter().zip(&baseline[0])) {
        assert_eq!(wide, narrow, "'{code}' of {case:x?} with wide lanes and without");
    }
    assert_eq!(guarded, baseline[1], "'{code}' under a guard with wide lanes and without");
    let kept = KEPT & (u64::MAX >> (64 - bits[0]));
    for (thread, (&plain, &value)) in all.iter().zip(&guarded).enumerate() {
        let want = if thread % 3 == 0 { kept } else { plain };
        assert_eq!(value, want, "'{code}' under a guard, thread {thread}, operands {:x?}", cases[thread]);
    }
    all
}

/// As `apply`, for code that has a guard of its own.
pub(super) fn apply_unguarded(code: &str, bits: [u32; 4], cases: &[[u64; 3]]) -> Vec<u64> {
    launch(code, bits, cases, false)
}

/// Why the code cannot be loaded.
pub(super) fn refusal(code: &str, bits: [u32; 4]) -> String {
    match try_launch(code, bits, &[[0; 3]], false) {
        Ok(_) => panic!("'{code}' was not refused"),
        Err(message) => message,
    }
}

fn launch(code: &str, bits: [u32; 4], cases: &[[u64; 3]], guarded: bool) -> Vec<u64> {
    try_launch(code, bits, cases, guarded).unwrap_or_else(|error| panic!("'{code}': {error}"))
}

fn try_launch(code: &str, bits: [u32; 4], cases: &[[u64; 3]], guarded: bool) -> Result<Vec<u64>, String> {
    let [d, a, b, c] = bits;
    let mut input: Vec<u64> = cases.iter().flatten().copied().collect();
    let mut output = vec![0u64; cases.len()];
    let guard = if guarded { "@%go " } else { "" };
    let code: String = code
        .split(';')
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .fold(String::new(), |text, line| text + "    " + guard + line + ";\n");
    let text = format!(
        "
.version 8.5
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n) {{
    .reg .pred %go, %p, %q, %end;
    .reg .b32 %n, %i, %m;
    .reg .b64 %in, %out, %at, %wide;
    .reg .b{d} %d;
    .reg .b{a} %a;
    .reg .b{b} %b;
    .reg .b{c} %c;
    .reg .b16 %h, %h1;
    .reg .b32 %w, %w1;
    ld.param.u64 %in, [in];
    ld.param.u64 %out, [out];
    ld.param.u32 %n, [n];
    mov.u32 %m, %ctaid.x;
    mov.u32 %i, %ntid.x;
    mul.lo.u32 %m, %m, %i;
    mov.u32 %i, %tid.x;
    add.u32 %i, %i, %m;
    setp.ge.u32 %end, %i, %n;
    @%end bra DONE;
    rem.u32 %m, %i, 3;
    setp.ne.u32 %go, %m, 0;
    mad.wide.u32 %at, %i, 24, %in;
    ld.global.b{a} %a, [%at];
    ld.global.b{b} %b, [%at+8];
    ld.global.b{c} %c, [%at+16];
    mov.b64 %wide, {KEPT};
    mad.wide.u32 %at, %i, 8, %out;
    st.global.b64 [%at], 0;
    st.global.b64 [%at], %wide;
    ld.global.b{d} %d, [%at];
    setp.eq.u32 %p, %i, %n;
    setp.eq.u32 %q, %i, %n;
{code}
    st.global.b64 [%at], 0;
    st.global.b{d} [%at], %d;
DONE:
    ret;
}}
"
    );
    let blocks = cases.len().div_ceil(THREADS) as u32;
    let args = [input.as_mut_ptr() as u64, output.as_mut_ptr() as u64, cases.len() as u64];
    Case::new(&text, blocks, THREADS as u32).run(&args)?;
    Ok(output)
}

/// Operands of a format: special values in all combinations, then random ones near each other and anywhere.
pub(super) fn floats(exp_bits: u32, man_bits: u32, count: usize, seed: u64) -> Vec<[u64; 3]> {
    let sign = 1u64 << (exp_bits + man_bits);
    let infinity = sign - (1 << man_bits);
    let one = (infinity >> man_bits >> 1) << man_bits;
    let quiet = infinity | 1 << (man_bits - 1);
    let mut special = vec![0, 1, (1 << man_bits) - 1, 1 << man_bits, one, one + 1, one + (1 << man_bits), infinity - 1];
    special.extend([infinity, infinity + 1, quiet, quiet + 5, sign - 1, 37 << (man_bits / 2)]);
    let both: Vec<u64> = special.iter().flat_map(|&x| [x, x | sign]).collect();
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for &a in &both {
        for &b in &both {
            cases.push([a, b, both[random.below(both.len())]]);
        }
    }
    let mask = sign | (sign - 1);
    for i in 0..count {
        let mut value = || random.next() & mask;
        let (a, b, c) = (value(), value(), value());
        // Exponents near one make sums and products that round.
        let near = |x: u64| {
            let exponent = (one >> man_bits) - 2 + (x >> 7 & 3);
            (x & (sign | ((1 << man_bits) - 1))) | (exponent << man_bits)
        };
        cases.push(if i % 2 == 0 { [a, b, c] } else { [near(a), near(b), near(c)] });
    }
    cases
}

pub(super) fn f32s(seed: u64) -> Vec<[u64; 3]> {
    floats(8, 23, 600, seed)
}

pub(super) fn f64s(seed: u64) -> Vec<[u64; 3]> {
    floats(11, 52, 600, seed)
}

pub(super) fn f16s(seed: u64) -> Vec<[u64; 3]> {
    floats(5, 10, 600, seed)
}

pub(super) fn bf16s(seed: u64) -> Vec<[u64; 3]> {
    floats(8, 7, 600, seed)
}

/// Pairs of 16-bit operands: neighbours of a list.
pub(super) fn pairs(cases: &[[u64; 3]]) -> Vec<[u64; 3]> {
    let n = cases.len();
    (0..n).map(|i| [0, 1, 2].map(|k| cases[i][k] | cases[(i * 7 + 3) % n][k] << 16)).collect()
}

/// Compare with an expected value per case.
pub(super) fn check(code: &str, bits: [u32; 4], cases: &[[u64; 3]], want: impl Fn([u64; 3]) -> u64) {
    let mask = u64::MAX >> (64 - bits[0]);
    for (case, got) in cases.iter().zip(apply(code, bits, cases)) {
        let want = want(*case) & mask;
        assert_eq!(got, want, "'{code}' of {case:x?}: {got:#x}, not {want:#x}");
    }
}
