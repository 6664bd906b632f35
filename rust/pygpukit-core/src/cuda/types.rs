//! The driver's structures and constants, as laid out in cuda.h.
//!
//! Sizes and offsets were taken from the header with a C compiler; the assertions at the end hold them.

use std::ffi::c_void;
use std::mem::{align_of, offset_of, size_of};

/// Any opaque handle of the driver (context, stream, event, kernel, node ...).
pub type Handle = *mut c_void;
/// `CUdevice`.
pub type Ordinal = i32;
/// `CUhostFn`.
pub type HostCallback = unsafe extern "C" fn(*mut c_void);

pub mod attribute {
    //! `CUdevice_attribute`.
    pub const MAX_THREADS_PER_BLOCK: i32 = 1;
    pub const MAX_BLOCK_DIM_X: i32 = 2;
    pub const MAX_GRID_DIM_X: i32 = 5;
    pub const MAX_SHARED_PER_BLOCK: i32 = 8;
    pub const CLOCK_RATE: i32 = 13;
    pub const SM_COUNT: i32 = 16;
    pub const MEMORY_CLOCK_RATE: i32 = 36;
    pub const MEMORY_BUS_WIDTH: i32 = 37;
    pub const L2_CACHE_SIZE: i32 = 38;
    pub const MAX_THREADS_PER_SM: i32 = 39;
    pub const CAPABILITY_MAJOR: i32 = 75;
    pub const CAPABILITY_MINOR: i32 = 76;
    pub const MAX_SHARED_PER_SM: i32 = 81;
    pub const COOPERATIVE_LAUNCH: i32 = 95;
    pub const MAX_SHARED_PER_BLOCK_OPTIN: i32 = 97;
    pub const VMM_SUPPORTED: i32 = 102;
    pub const POSIX_FD_SUPPORTED: i32 = 103;
    pub const MEMORY_POOLS_SUPPORTED: i32 = 115;
    pub const CLUSTER_LAUNCH: i32 = 120;
}

pub mod kernel_attribute {
    //! `CUfunction_attribute`.
    pub const MAX_THREADS: i32 = 0;
    pub const STATIC_SHARED: i32 = 1;
    pub const CONST_BYTES: i32 = 2;
    pub const LOCAL_BYTES: i32 = 3;
    pub const REGISTERS: i32 = 4;
    pub const MAX_DYNAMIC_SHARED: i32 = 8;
}

pub mod launch_attribute {
    //! `CUlaunchAttributeID`.
    pub const COOPERATIVE: u32 = 2;
    pub const CLUSTER_DIMENSION: u32 = 4;
    pub const PROGRAMMATIC_SERIALIZATION: u32 = 6;
    pub const PRIORITY: u32 = 8;
}

pub const STREAM_NON_BLOCKING: u32 = 1;
/// The capturing thread may make any call meanwhile: a library may load code or ask for memory.
pub const CAPTURE_RELAXED: u32 = 2;
pub const EVENT_DISABLE_TIMING: u32 = 2;
pub const HOST_ALLOC_PORTABLE: u32 = 1;
pub const HOST_ALLOC_DEVICE_MAP: u32 = 2;

/// Markers of the `extra` argument of a launch.
pub const PARAM_END: usize = 0;
pub const PARAM_BUFFER_POINTER: usize = 1;
pub const PARAM_BUFFER_SIZE: usize = 2;

pub const JIT_ERROR_LOG_BUFFER: i32 = 5;
pub const JIT_ERROR_LOG_BUFFER_SIZE: i32 = 6;

pub const MEMORY_TYPE_HOST: u32 = 1;
pub const MEMORY_TYPE_DEVICE: u32 = 2;

pub const ALLOCATION_TYPE_PINNED: u32 = 1;
pub const HANDLE_TYPE_NONE: u32 = 0;
pub const HANDLE_TYPE_POSIX_FD: u32 = 1;
pub const LOCATION_TYPE_DEVICE: u32 = 1;
pub const ACCESS_READ_WRITE: u32 = 3;
pub const GRANULARITY_MINIMUM: u32 = 0;

pub const RESOURCE_SM: u32 = 1;
pub const SPLIT_IGNORE_COSCHEDULING: u32 = 1;
pub const GREEN_CTX_DEFAULT_STREAM: u32 = 1;

/// `CUlaunchAttribute`: an id and a 64-byte union of which we write the first words.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    pub id: u32,
    pub pad: u32,
    pub value: [u32; 16],
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    pub reserved: [u8; 5],
}

impl EdgeData {
    /// The successor starts when the predecessor has ended.
    pub const FULL: EdgeData = EdgeData { from_port: 0, to_port: 0, kind: 0, reserved: [0; 5] };
    /// The successor may start as soon as every block of the predecessor has allowed it or ended.
    pub const PROGRAMMATIC: EdgeData = EdgeData { from_port: 1, to_port: 0, kind: 1, reserved: [0; 5] };
}

const _: () = assert!(size_of::<EdgeData>() == 8);

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: u32,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelNodeParams {
    pub function: Handle,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    /// Used when `function` is null: the context-free kernel.
    pub kernel: Handle,
    pub context: Handle,
}

/// One side of `CUDA_MEMCPY3D_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CopySide {
    pub x_bytes: usize,
    pub y: usize,
    pub z: usize,
    pub lod: usize,
    pub memory_type: u32,
    pub host: *mut c_void,
    pub device: u64,
    pub array: Handle,
    pub reserved: *mut c_void,
    pub pitch: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy3d {
    pub src: CopySide,
    pub dst: CopySide,
    pub width_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemsetNodeParams {
    pub dst: u64,
    pub pitch: usize,
    pub value: u32,
    pub element_size: u32,
    pub width: usize,
    pub height: usize,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemLocation {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    pub kind: u32,
    pub handle_types: u32,
    pub location: MemLocation,
    pub win32_meta: *mut c_void,
    pub compression: u8,
    pub gpu_direct_rdma: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    pub location: MemLocation,
    pub flags: u32,
}

/// `CUdevResource` of the SM kind, as large and laid out since CUDA 12.4. Only the driver writes it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct DevResource {
    pub kind: u32,
    pub internal: [u32; 23],
    pub sm_count: u32,
    /// What newer drivers tell about the SMs, and their link to a further resource.
    pub rest: [u32; 11],
}

impl DevResource {
    pub const NONE: DevResource = DevResource { kind: 0, internal: [0; 23], sm_count: 0, rest: [0; 11] };
}

const _: () = {
    assert!(size_of::<DevResource>() == 144 && align_of::<DevResource>() == 8);
    assert!(offset_of!(DevResource, internal) == 4 && offset_of!(DevResource, sm_count) == 96);
    assert!(size_of::<LaunchAttribute>() == 72 && offset_of!(LaunchAttribute, value) == 8);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(offset_of!(LaunchConfig, block) == 12 && offset_of!(LaunchConfig, shared) == 24);
    assert!(offset_of!(LaunchConfig, stream) == 32 && offset_of!(LaunchConfig, attributes) == 40);
    assert!(offset_of!(LaunchConfig, attribute_count) == 48);
    assert!(size_of::<KernelNodeParams>() == 72);
    assert!(offset_of!(KernelNodeParams, grid) == 8 && offset_of!(KernelNodeParams, shared) == 32);
    assert!(offset_of!(KernelNodeParams, params) == 40 && offset_of!(KernelNodeParams, extra) == 48);
    assert!(offset_of!(KernelNodeParams, kernel) == 56 && offset_of!(KernelNodeParams, context) == 64);
    assert!(size_of::<CopySide>() == 88 && offset_of!(CopySide, memory_type) == 32);
    assert!(offset_of!(CopySide, host) == 40 && offset_of!(CopySide, device) == 48);
    assert!(offset_of!(CopySide, array) == 56 && offset_of!(CopySide, pitch) == 72);
    assert!(offset_of!(CopySide, height) == 80);
    assert!(size_of::<Copy3d>() == 200 && offset_of!(Copy3d, dst) == 88);
    assert!(offset_of!(Copy3d, width_bytes) == 176 && offset_of!(Copy3d, depth) == 192);
    assert!(size_of::<MemsetNodeParams>() == 40 && offset_of!(MemsetNodeParams, value) == 16);
    assert!(offset_of!(MemsetNodeParams, element_size) == 20 && offset_of!(MemsetNodeParams, width) == 24);
    assert!(size_of::<MemLocation>() == 8);
    assert!(size_of::<AllocationProp>() == 32 && offset_of!(AllocationProp, location) == 8);
    assert!(offset_of!(AllocationProp, win32_meta) == 16 && offset_of!(AllocationProp, compression) == 24);
    assert!(size_of::<AccessDesc>() == 12 && offset_of!(AccessDesc, flags) == 8);
};
