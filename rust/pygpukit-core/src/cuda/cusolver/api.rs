//! The calls and constants of cuSOLVER's dense part that we use, as in cusolverDn.h; opaque objects are handles.

use std::ffi::{c_char, c_void};

use crate::cuda::status::Status;
use crate::cuda::table::{BASELINE, Resolver, table};
use crate::cuda::types::Handle;

/// `cudaDataType` of float32, float64, complex64 and complex128.
pub const DATA_TYPES: [i32; 4] = [0, 1, 4, 5];

pub mod fill {
    //! `cublasFillMode_t`.
    pub const LOWER: i32 = 0;
    pub const UPPER: i32 = 1;
}

table! {
    /// The calls without which nothing can be computed. Their status is a `cusolverStatus_t`.
    SolverApi @ BASELINE;
    cusolverDnCreate(*mut Handle);
    cusolverDnSetStream(Handle, Handle);
    cusolverDnCreateParams(*mut Handle);
    cusolverDnXpotrf_bufferSize(
        Handle, Handle, i32, i64, i32, *const c_void, i64, i32, *mut usize, *mut usize,
    );
    cusolverDnXpotrf(
        Handle, Handle, i32, i64, i32, *mut c_void, i64, i32, *mut c_void, usize, *mut c_void, usize, *mut i32,
    );
    cusolverDnXgetrf_bufferSize(
        Handle, Handle, i64, i64, i32, *const c_void, i64, i32, *mut usize, *mut usize,
    );
    cusolverDnXgetrf(
        Handle, Handle, i64, i64, i32, *mut c_void, i64, *mut i64, i32, *mut c_void, usize, *mut c_void, usize,
        *mut i32,
    );
    cusolverDnXgetrs(
        Handle, Handle, i32, i64, i64, i32, *const c_void, i64, *const i64, i32, *mut c_void, i64, *mut i32,
    );
    cusolverDnXgeqrf_bufferSize(
        Handle, Handle, i64, i64, i32, *const c_void, i64, i32, *const c_void, i32, *mut usize, *mut usize,
    );
    cusolverDnXgeqrf(
        Handle, Handle, i64, i64, i32, *mut c_void, i64, i32, *mut c_void, i32, *mut c_void, usize, *mut c_void,
        usize, *mut i32,
    );
    cusolverDnXsyevd_bufferSize(
        Handle, Handle, i32, i32, i64, i32, *const c_void, i64, i32, *const c_void, i32, *mut usize, *mut usize,
    );
    cusolverDnXsyevd(
        Handle, Handle, i32, i32, i64, i32, *mut c_void, i64, i32, *mut c_void, i32, *mut c_void, usize, *mut c_void,
        usize, *mut i32,
    );
    cusolverDnXgesvd_bufferSize(
        Handle, Handle, c_char, c_char, i64, i64, i32, *const c_void, i64, i32, *const c_void, i32, *const c_void, i64,
        i32, *const c_void, i64, i32, *mut usize, *mut usize,
    );
    cusolverDnXgesvd(
        Handle, Handle, c_char, c_char, i64, i64, i32, *mut c_void, i64, i32, *mut c_void, i32, *mut c_void, i64, i32,
        *mut c_void, i64, i32, *mut c_void, usize, *mut c_void, usize, *mut i32,
    );
    cusolverDnSorgqr_bufferSize(Handle, i32, i32, i32, *const c_void, i32, *const c_void, *mut i32);
    cusolverDnDorgqr_bufferSize(Handle, i32, i32, i32, *const c_void, i32, *const c_void, *mut i32);
    cusolverDnCungqr_bufferSize(Handle, i32, i32, i32, *const c_void, i32, *const c_void, *mut i32);
    cusolverDnZungqr_bufferSize(Handle, i32, i32, i32, *const c_void, i32, *const c_void, *mut i32);
    cusolverDnSorgqr(Handle, i32, i32, i32, *mut c_void, i32, *const c_void, *mut c_void, i32, *mut i32);
    cusolverDnDorgqr(Handle, i32, i32, i32, *mut c_void, i32, *const c_void, *mut c_void, i32, *mut i32);
    cusolverDnCungqr(Handle, i32, i32, i32, *mut c_void, i32, *const c_void, *mut c_void, i32, *mut i32);
    cusolverDnZungqr(Handle, i32, i32, i32, *mut c_void, i32, *const c_void, *mut c_void, i32, *mut i32);
}

table! {
    /// Eigenvalues of general matrices, which older libraries lack.
    GeevApi @ BASELINE;
    cusolverDnXgeev_bufferSize(
        Handle, Handle, i32, i32, i64, i32, *const c_void, i64, i32, *const c_void, i32, *const c_void, i64, i32,
        *const c_void, i64, i32, *mut usize, *mut usize,
    );
    cusolverDnXgeev(
        Handle, Handle, i32, i32, i64, i32, *mut c_void, i64, i32, *mut c_void, i32, *mut c_void, i64, i32,
        *mut c_void, i64, i32, *mut c_void, usize, *mut c_void, usize, *mut i32,
    );
}
