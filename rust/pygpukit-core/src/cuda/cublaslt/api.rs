//! The calls and constants of cuBLASLt that we use, as in cublasLt.h; opaque objects are handles.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

use crate::cuda::status::Status;
use crate::cuda::table::{BASELINE, Resolver, table};
use crate::cuda::types::Handle;

/// `cublasLtMatmulAlgo_t`: an algorithm and its settings, opaque, and portable between processes of one version.
pub type Algo = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Heuristic {
    pub algo: Algo,
    pub workspace: usize,
    pub state: i32,
    pub waves: f32,
    pub reserved: [i32; 4],
}

impl Heuristic {
    pub const NONE: Heuristic = Heuristic { algo: [0; 8], workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
}

const _: () = {
    assert!(size_of::<Algo>() == 64 && size_of::<Heuristic>() == 96);
    assert!(offset_of!(Heuristic, workspace) == 64 && offset_of!(Heuristic, state) == 72);
    assert!(offset_of!(Heuristic, waves) == 76);
};

pub mod data_type {
    //! `cudaDataType`.
    pub const F32: i32 = 0;
    pub const F64: i32 = 1;
    pub const F16: i32 = 2;
    pub const I8: i32 = 3;
    pub const I32: i32 = 10;
    pub const BF16: i32 = 14;
    pub const E4M3: i32 = 28;
}

pub mod compute_type {
    //! `cublasComputeType_t`.
    pub const F32: i32 = 68;
    pub const F64: i32 = 70;
    pub const I32: i32 = 72;
    pub const FAST_TF32: i32 = 77;
}

/// `cublasOperation_t`.
pub const TRANSPOSED: i32 = 1;

pub mod desc {
    //! `cublasLtMatmulDescAttributes_t`.
    pub const TRANSPOSE_A: i32 = 3;
    pub const TRANSPOSE_B: i32 = 4;
}

pub mod layout {
    //! `cublasLtMatrixLayoutAttribute_t`.
    pub const BATCH_COUNT: i32 = 5;
    pub const BATCH_OFFSET: i32 = 6;
}

pub mod preference {
    //! `cublasLtMatmulPreferenceAttributes_t`.
    pub const MAX_WORKSPACE: i32 = 1;
    pub const REDUCTION_SCHEMES: i32 = 3;
    /// Of the matrix a; those of b, c and d follow.
    pub const ALIGNMENT_A: i32 = 5;
}

pub mod config {
    //! `cublasLtMatmulAlgoConfigAttributes_t`.
    pub const ID: i32 = 0;
    pub const TILE: i32 = 1;
    pub const SPLIT_K: i32 = 2;
    pub const REDUCTION_SCHEME: i32 = 3;
    pub const SWIZZLING: i32 = 4;
    pub const CUSTOM_OPTION: i32 = 5;
    pub const STAGES: i32 = 6;
    pub const INNER_SHAPE: i32 = 7;
    pub const CLUSTER_SHAPE: i32 = 8;
}

table! {
    /// The calls without which no product can be computed. Their status is a `cublasStatus_t`.
    LtApi @ BASELINE;
    cublasLtCreate(*mut Handle);
    cublasLtMatmulDescCreate(*mut Handle, i32, i32);
    cublasLtMatmulDescDestroy(Handle);
    cublasLtMatmulDescSetAttribute(Handle, i32, *const c_void, usize);
    cublasLtMatrixLayoutCreate(*mut Handle, i32, u64, u64, i64);
    cublasLtMatrixLayoutDestroy(Handle);
    cublasLtMatrixLayoutSetAttribute(Handle, i32, *const c_void, usize);
    cublasLtMatmulPreferenceCreate(*mut Handle);
    cublasLtMatmulPreferenceDestroy(Handle);
    cublasLtMatmulPreferenceSetAttribute(Handle, i32, *const c_void, usize);
    cublasLtMatmulAlgoGetHeuristic(
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, i32, *mut Heuristic, *mut i32,
    );
    cublasLtMatmulAlgoCheck(Handle, Handle, Handle, Handle, Handle, Handle, *const Algo, *mut Heuristic);
    cublasLtMatmulAlgoConfigGetAttribute(*const Algo, i32, *mut c_void, usize, *mut usize);
    cublasLtMatmul(
        Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void,
        Handle, *mut c_void, Handle, *const Algo, *mut c_void, usize, Handle,
    );
}
