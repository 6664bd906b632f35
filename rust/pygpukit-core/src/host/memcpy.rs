//! Copying host memory past the caches.

/// Copy bytes that will not be read by this processor soon, with stores that leave the caches alone where there are any.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes`, and they do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let lead = dst.align_offset(LINE).min(bytes);
    // SAFETY: every access lies in the `bytes` from `src` and `dst`; the stores are aligned after `lead` bytes, and the
    // fence orders them before whatever tells others of them.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, lead);
        let mut at = lead;
        while at + LINE <= bytes {
            let (from, to) = (src.add(at).cast::<__m128i>(), dst.add(at).cast::<__m128i>());
            let line = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, line[0]);
            _mm_stream_si128(to.add(1), line[1]);
            _mm_stream_si128(to.add(2), line[2]);
            _mm_stream_si128(to.add(3), line[3]);
            at += LINE;
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(src.add(at), dst.add(at), bytes - at);
    }
}

/// # Safety
/// `src` is readable and `dst` writable for `bytes`, and they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy_past_caches(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) };
}

/// A thread of `copy_by_threads` copies at least this much.
const PART: usize = 2 << 20;
const MOST_THREADS: usize = 8;

/// Copy with as many threads as it takes to keep up with the bus.
///
/// # Safety
/// `src` is readable and `dst` writable for `bytes`, and they do not overlap.
pub(crate) unsafe fn copy_by_threads(dst: *mut u8, src: *const u8, bytes: usize) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (bytes / PART).clamp(1, MOST_THREADS.min(cores));
    let part = bytes.div_ceil(threads);
    let (to, from) = (dst as usize, src as usize);
    let copy = |at: usize| {
        let bytes = part.min(bytes.saturating_sub(at));
        // SAFETY: the caller's contract; parts do not overlap.
        unsafe { std::ptr::copy_nonoverlapping((from + at) as *const u8, (to + at) as *mut u8, bytes) };
    };
    std::thread::scope(|scope| {
        for at in (1..threads).map(|i| i * part) {
            if std::thread::Builder::new().spawn_scoped(scope, move || copy(at)).is_err() {
                copy(at);
            }
        }
        copy(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn threads_copy_every_byte() {
        for bytes in [0, 1, PART - 1, 3 * PART + 7, 17 * PART + 13] {
            let source: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            let mut target = vec![0u8; bytes + 1];
            // SAFETY: both ranges lie in their vectors.
            unsafe { copy_by_threads(target.as_mut_ptr(), source.as_ptr(), bytes) };
            assert!(target[..bytes] == source[..] && target[bytes] == 0);
        }
    }

    proptest! {
        #[test]
        fn every_byte_arrives_and_no_other_changes(from in 0usize..70, to in 0usize..70, bytes in 0usize..1000) {
            let source: Vec<u8> = (0..1100).map(|i| (i * 7 % 251) as u8).collect();
            let mut target = vec![0xeeu8; 1200];
            // SAFETY: both ranges lie in their vectors.
            unsafe { copy_past_caches(target.as_mut_ptr().add(to), source.as_ptr().add(from), bytes) };
            prop_assert_eq!(&target[to..to + bytes], &source[from..from + bytes]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|b| *b == 0xee));
        }
    }
}
