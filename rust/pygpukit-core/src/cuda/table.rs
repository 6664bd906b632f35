//! The driver's function table: one row per call, resolved by `cuGetProcAddress`.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::cuda::loader::Opened;
use crate::cuda::status::Status;
use crate::cuda::types::*;

/// `cuGetProcAddress_v2`.
pub type GetProc = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;
/// `cuGetProcAddress` as it was before CUDA 12.
type GetProcBefore12 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> Status;

/// Calls are asked for with the meaning they have in this version of the header: CUDA 12.4.
pub const BASELINE: i32 = 12040;

/// How symbols are found. `cuGetProcAddress` is trusted when there is one; the loader's symbol table is the
/// way only without it.
pub(crate) enum Resolver<'a> {
    Proc(GetProc),
    Before12(GetProcBefore12),
    Symbols(&'a Opened),
}

impl<'a> Resolver<'a> {
    pub fn of(library: &'a Opened) -> Resolver<'a> {
        if let Some(address) = library.symbol("cuGetProcAddress_v2") {
            // SAFETY: this symbol has this signature in every driver since CUDA 12.0.
            return Resolver::Proc(unsafe { std::mem::transmute::<*mut c_void, GetProc>(address) });
        }
        match library.symbol("cuGetProcAddress") {
            // SAFETY: this symbol has this signature in every driver since CUDA 11.3.
            Some(address) => {
                Resolver::Before12(unsafe { std::mem::transmute::<*mut c_void, GetProcBefore12>(address) })
            }
            None => Resolver::Symbols(library),
        }
    }

    /// Address of a call: `name` as in the header with its meaning at `version`, exported by the library as `export`.
    pub fn find(&self, name: &str, export: &str, version: i32) -> Option<*mut c_void> {
        let wanted = CString::new(name).ok()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: the name is a C string and the results are written to live locals.
        let status = unsafe {
            match self {
                Resolver::Proc(get) => {
                    let mut found = 0;
                    get(wanted.as_ptr(), &mut address, version, 0, &mut found)
                }
                Resolver::Before12(get) => get(wanted.as_ptr(), &mut address, version, 0),
                Resolver::Symbols(library) => return library.symbol(export),
            }
        };
        (status == Status::SUCCESS && !address.is_null()).then_some(address)
    }
}

/// Declare a table whose calls must all be there; `resolve` returns it or the names that are missing.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident @ $version:expr;
     $( $name:ident $(as $export:literal)? ($($argument:ty),* $(,)?); )*) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        pub struct $table {
            $( pub $name: unsafe extern "C" fn($($argument),*) -> Status, )*
        }

        impl $table {
            pub(crate) fn resolve(resolver: &Resolver<'_>) -> Result<$table, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    #[allow(non_snake_case)]
                    let $name = {
                        let export = [stringify!($name), $($export)?].last().copied().unwrap_or_default();
                        resolver.find(stringify!($name), export, $version).unwrap_or_else(|| {
                            missing.push(stringify!($name));
                            std::ptr::null_mut()
                        })
                    };
                )*
                if !missing.is_empty() {
                    return Err(missing);
                }
                Ok($table {
                    // SAFETY: the address is not null and the row holds the call's C signature.
                    $( $name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> Status>($name)
                    }, )*
                })
            }
        }
    };
}
pub(crate) use table;

table! {
    /// What must be there before anything else can be said: the version decides the rest.
    VersionCall @ BASELINE;
    cuDriverGetVersion(*mut i32);
}

table! {
    /// The calls without which the device cannot start.
    Api @ BASELINE;
    cuInit(u32);
    cuGetErrorName(i32, *mut *const c_char);
    cuGetErrorString(i32, *mut *const c_char);
    cuDeviceGetCount(*mut i32);
    cuDeviceGet(*mut Ordinal, i32);
    cuDeviceGetName(*mut c_char, i32, Ordinal);
    cuDeviceGetAttribute(*mut i32, i32, Ordinal);
    cuDeviceTotalMem as "cuDeviceTotalMem_v2" (*mut usize, Ordinal);
    cuDeviceGetUuid as "cuDeviceGetUuid_v2" (*mut [u8; 16], Ordinal);
    cuDeviceGetPCIBusId(*mut c_char, i32, Ordinal);
    cuDevicePrimaryCtxRetain(*mut Handle, Ordinal);
    cuCtxGetCurrent(*mut Handle);
    cuCtxSetCurrent(Handle);
    cuCtxGetStreamPriorityRange(*mut i32, *mut i32);
    cuMemGetInfo as "cuMemGetInfo_v2" (*mut usize, *mut usize);
    cuMemAllocAsync(*mut u64, usize, Handle);
    cuMemFreeAsync(u64, Handle);
    cuMemHostAlloc(*mut *mut c_void, usize, u32);
    cuMemFreeHost(*mut c_void);
    cuStreamCreateWithPriority(*mut Handle, u32, i32);
    cuStreamQuery(Handle);
    cuStreamDestroy as "cuStreamDestroy_v2" (Handle);
    cuStreamWaitEvent(Handle, Handle, u32);
    cuEventCreate(*mut Handle, u32);
    cuEventDestroy as "cuEventDestroy_v2" (Handle);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventElapsedTime(*mut f32, Handle, Handle);
    cuMemcpyHtoDAsync as "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync as "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    cuMemcpyDtoDAsync as "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Handle);
    cuMemsetD8Async(u64, u8, usize, Handle);
    cuMemsetD16Async(u64, u16, usize, Handle);
    cuMemsetD32Async(u64, u32, usize, Handle);
    cuLaunchKernelEx(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    cuLaunchHostFunc(Handle, HostCallback, *mut c_void);
    cuLibraryLoadData(
        *mut Handle, *const c_void, *mut i32, *mut *mut c_void, u32, *mut i32, *mut *mut c_void, u32,
    );
    cuLibraryUnload(Handle);
    cuLibraryGetKernel(*mut Handle, Handle, *const c_char);
    cuLibraryGetGlobal(*mut u64, *mut usize, Handle, *const c_char);
    cuKernelGetFunction(*mut Handle, Handle);
    cuFuncLoad(Handle);
    cuKernelGetAttribute(*mut i32, i32, Handle, Ordinal);
    cuKernelSetAttribute(i32, i32, Handle, Ordinal);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut i32, Handle, i32, usize);
    cuGraphCreate(*mut Handle, u32);
    cuGraphAddKernelNode as "cuGraphAddKernelNode_v2" (
        *mut Handle, Handle, *const Handle, usize, *const KernelNodeParams,
    );
    cuGraphKernelNodeSetAttribute(Handle, u32, *const [u32; 16]);
    cuGraphAddMemcpyNode(*mut Handle, Handle, *const Handle, usize, *const Copy3d, Handle);
    cuGraphAddMemsetNode(*mut Handle, Handle, *const Handle, usize, *const MemsetNodeParams, Handle);
    cuGraphAddEmptyNode(*mut Handle, Handle, *const Handle, usize);
    cuGraphAddChildGraphNode(*mut Handle, Handle, *const Handle, usize, Handle);
    cuStreamBeginCapture as "cuStreamBeginCapture_v2" (Handle, u32);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphUpload(Handle, Handle);
    cuGraphLaunch(Handle, Handle);
    cuGraphDestroy(Handle);
    cuGraphExecDestroy(Handle);
}

table! {
    /// Virtual memory management; without it arrays get whole allocations.
    VmmApi @ BASELINE;
    cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
    cuMemAddressFree(u64, usize);
    cuMemCreate(*mut u64, usize, *const AllocationProp, u64);
    cuMemRelease(u64);
    cuMemMap(u64, usize, usize, u64, u64);
    cuMemUnmap(u64, usize);
    cuMemSetAccess(u64, usize, *const AccessDesc, usize);
    cuMemGetAllocationGranularity(*mut usize, *const AllocationProp, u32);
}

table! {
    /// Tensor maps, which kernels of Hopper and newer use.
    TensorMapApi @ BASELINE;
    cuTensorMapEncodeTiled(
        *mut c_void, u32, u32, *const c_void, *const u64, *const u64, *const u32, *const u32, u32, u32, u32, u32,
    );
}

table! {
    /// Green contexts, used through streams; complete from CUDA 12.5.
    GreenApi @ 12050;
    cuDeviceGetDevResource(Ordinal, *mut DevResource, u32);
    cuDevSmResourceSplitByCount(*mut DevResource, *mut u32, *const DevResource, *mut DevResource, u32, u32);
    cuDevResourceGenerateDesc(*mut Handle, *mut DevResource, u32);
    cuGreenCtxCreate(*mut Handle, Handle, Ordinal, u32);
    cuGreenCtxDestroy(Handle);
    cuGreenCtxGetDevResource(Handle, *mut DevResource, u32);
    cuCtxFromGreenCtx(*mut Handle, Handle);
    cuGreenCtxStreamCreate(*mut Handle, Handle, u32, i32);
}

table! {
    /// Offsets and sizes of a kernel's parameters.
    ParamInfoApi @ BASELINE;
    cuKernelGetParamInfo(Handle, usize, *mut usize, *mut usize);
}

table! {
    /// The elapsed time that works for events of any context.
    ElapsedApi @ 12080;
    cuEventElapsedTime as "cuEventElapsedTime_v2" (*mut f32, Handle, Handle);
}

table! {
    /// Changes of executable graphs.
    UpdateApi @ BASELINE;
    cuGraphExecKernelNodeSetParams as "cuGraphExecKernelNodeSetParams_v2" (Handle, Handle, *const KernelNodeParams);
    cuGraphExecMemcpyNodeSetParams(Handle, Handle, *const Copy3d, Handle);
    cuGraphExecMemsetNodeSetParams(Handle, Handle, *const MemsetNodeParams, Handle);
}

table! {
    /// Graph edges with properties: a kernel may start before its predecessor ends.
    EdgeApi @ BASELINE;
    cuGraphAddDependencies as "cuGraphAddDependencies_v2" (
        Handle, *const Handle, *const Handle, *const EdgeData, usize,
    );
}
