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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
