//! Sixteen float32 in the registers there are.

/// Elements of a vector: partial sums of a sum.
pub(super) const LANES: usize = 16;

/// A vector of `LANES` elements. Every implementation rounds alike, so all give the same bits.
///
/// # Safety
/// Functions of an implementation are called only where the machine has its instructions; `load` may
/// read `LANES` elements behind its pointer, and `store` may write as many; of a part it is `count`.
pub(super) trait Lanes: Copy {
    unsafe fn zero() -> Self;
    unsafe fn all(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `a * b + self`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;

    /// The first `count` elements, zeros behind them.
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        let mut part = [0.0; LANES];
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), count);
            Self::load(part.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        let mut part = [0.0; LANES];
        // SAFETY: the caller's contract.
        unsafe {
            self.store(part.as_mut_ptr());
            std::ptr::copy_nonoverlapping(part.as_ptr(), to, count);
        }
    }

    /// The sum of the elements: halves are added until one is left.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut x = [0.0; LANES];
        // SAFETY: the caller's contract.
        unsafe { self.store(x.as_mut_ptr()) };
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                x[i] += x[i + half];
            }
            half /= 2;
        }
        x[0]
    }
}

#[derive(Clone, Copy)]
pub(super) struct Plain([f32; LANES]);

impl Lanes for Plain {
    #[inline(always)]
    unsafe fn zero() -> Plain {
        Plain([0.0; LANES])
    }

    #[inline(always)]
    unsafe fn all(value: f32) -> Plain {
        Plain([value; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Plain {
        // SAFETY: the caller's contract.
        Plain(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn fma(mut self, a: Plain, b: Plain) -> Plain {
        for i in 0..LANES {
            self.0[i] = a.0[i].mul_add(b.0[i], self.0[i]);
        }
        self
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub struct Avx2(__m256, __m256);

    #[inline(always)]
    unsafe fn sum8(x: __m256) -> f32 {
        // SAFETY: the caller's contract.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }

    impl Lanes for Avx2 {
        #[inline(always)]
        unsafe fn zero() -> Avx2 {
            // SAFETY: the caller's contract.
            unsafe { Avx2(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }

        #[inline(always)]
        unsafe fn all(value: f32) -> Avx2 {
            // SAFETY: the caller's contract.
            unsafe { Avx2(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Avx2 {
            // SAFETY: the caller's contract.
            unsafe { Avx2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller's contract.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }

        #[inline(always)]
        unsafe fn fma(self, a: Avx2, b: Avx2) -> Avx2 {
            // SAFETY: the caller's contract.
            unsafe { Avx2(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: the caller's contract.
            unsafe { sum8(_mm256_add_ps(self.0, self.1)) }
        }
    }

    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Lanes for Avx512 {
        #[inline(always)]
        unsafe fn zero() -> Avx512 {
            // SAFETY: the caller's contract.
            unsafe { Avx512(_mm512_setzero_ps()) }
        }

        #[inline(always)]
        unsafe fn all(value: f32) -> Avx512 {
            // SAFETY: the caller's contract.
            unsafe { Avx512(_mm512_set1_ps(value)) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Avx512 {
            // SAFETY: the caller's contract.
            unsafe { Avx512(_mm512_loadu_ps(from)) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller's contract.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn fma(self, a: Avx512, b: Avx512) -> Avx512 {
            // SAFETY: the caller's contract.
            unsafe { Avx512(_mm512_fmadd_ps(a.0, b.0, self.0)) }
        }

        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: the caller's contract.
            unsafe {
                let low = _mm512_castps512_ps256(self.0);
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0)));
                sum8(_mm256_add_ps(low, high))
            }
        }
    }
}

/// Instructions that functions of this module are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Width {
    /// All that this machine has, the widest last.
    pub(super) fn all() -> Vec<Width> {
        #[allow(unused_mut, reason = "others exist on x86-64 only")]
        let mut found = vec![Width::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                found.push(Width::Avx2);
                if is_x86_feature_detected!("avx512f") {
                    found.push(Width::Avx512);
                }
            }
        }
        found
    }

    pub(super) fn widest() -> Width {
        use std::sync::LazyLock;
        static WIDEST: LazyLock<Width> = LazyLock::new(|| Width::all().pop().unwrap_or(Width::Plain));
        *WIDEST
    }
}
