//! `Command`: everything the runtime ever asks of a device, as one owned value.
//!
//! A command is launched at once, or recorded in a graph and launched again and again; it owns what it
//! needs, so a recorded one keeps its kernel and memory alive.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::device::{DevPtr, RawGraph};
use crate::kernel::Kernel;
use crate::library_call::LibraryCall;
use crate::memory::Storage;
use crate::memory::registry::Extent;

/// The packed argument block of a kernel, laid out at the offsets the driver reports.
pub type ArgBlob = SmallVec<[u8; 96]>;

/// Work done by the host in stream order (NumPy operators on the CPU device).
pub type HostFn = Arc<dyn Fn() -> HostResult + Send + Sync>;

/// What a host function says of itself: the text of its error.
pub type HostResult = Result<(), String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LaunchAttributes {
    /// Blocks per cluster; all zero means no cluster.
    pub cluster: [u32; 3],
    pub cooperative: bool,
    /// The kernel may start before its predecessor ends: it waits on the device itself, in every thread, before it uses
    /// memory that is not `Access::Constant`.
    pub programmatic: bool,
    pub priority: Option<i32>,
    /// The kernel stays until it is told to leave: it is alone on its stream, and nobody waits for it.
    pub resident: bool,
}

/// An array that is an argument of a kernel, for reports of the checker.
#[derive(Clone, Debug)]
pub struct ArrayArg {
    /// Of the parameter.
    pub name: Arc<str>,
    /// Its first element, elements in all, and bytes of one.
    pub address: DevPtr,
    pub size: u64,
    pub item: u64,
    pub shape: SmallVec<[i64; 4]>,
    /// The memory it is a part of.
    pub memory: Extent,
    /// The kernel must leave it zero (`ExecCtx::counters`).
    pub ends_zero: bool,
}

#[derive(Clone)]
pub struct KernelLaunch {
    pub kernel: Arc<Kernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    pub attributes: LaunchAttributes,
    pub args: ArgBlob,
    /// See `Launch::arrays`.
    pub arrays: Vec<ArrayArg>,
}

/// A kernel launch that borrows what it needs: the form of the hot path, which clones nothing.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub kernel: &'a Arc<Kernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub attributes: LaunchAttributes,
    pub args: &'a [u8],
    /// Arrays among the arguments, by name; left empty for CUDA devices, which do not look at them.
    pub arrays: &'a [ArrayArg],
}

impl Launch<'_> {
    pub fn to_owned(&self) -> KernelLaunch {
        KernelLaunch {
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            attributes: self.attributes,
            args: ArgBlob::from_slice(self.args),
            arrays: self.arrays.to_vec(),
        }
    }
}

impl KernelLaunch {
    #[inline]
    pub fn borrow(&self) -> Launch<'_> {
        Launch {
            kernel: &self.kernel,
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            attributes: self.attributes,
            args: &self.args,
            arrays: &self.arrays,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

#[derive(Clone)]
pub struct Copy {
    pub kind: CopyKind,
    pub dst: u64,
    pub src: u64,
    pub bytes: usize,
    /// Keeps the host side alive while the command exists.
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// Set `count` elements of `width` bytes (1, 2 or 4) to `value`.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub dst: DevPtr,
    pub value: u32,
    pub width: u8,
    pub count: usize,
}

#[derive(Clone)]
pub enum Work {
    Kernel(KernelLaunch),
    Copy(Copy),
    Fill(Fill),
    Host(HostFn),
    /// Work that a library puts on the stream itself.
    Library(Arc<dyn LibraryCall>),
    Graph(RawGraph),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Work {
    /// One line for fault reports: what was launched and how.
    pub fn describe(&self) -> String {
        match self {
            Work::Kernel(k) => {
                format!("kernel {} grid={:?} block={:?} shared={}", k.kernel.name(), k.grid, k.block, k.shared)
            }
            Work::Copy(c) => format!("copy {:?} {} bytes", c.kind, c.bytes),
            Work::Fill(s) => format!("fill {} x {} bytes", s.count, s.width),
            Work::Host(_) => "host function".to_string(),
            Work::Library(call) => format!("library call {}", call.name()),
            Work::Graph(_) => "graph replay".to_string(),
        }
    }
}

/// What a command does to memory it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Every byte it changes gets a value that does not depend on what was there.
    Write,
    ReadWrite,
    /// Read, and not written by any command in flight (weights): it may be read before the predecessor has ended.
    Constant,
}

impl Access {
    #[inline]
    pub fn is_written(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }
}

/// Shape and type of an argument, kept for fault reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArgTag {
    pub dtype: u8,
    pub ndim: u8,
    pub dims: [u32; 4],
}

/// Memory a command touches.
#[derive(Clone)]
pub struct Use {
    pub storage: Arc<Storage>,
    pub access: Access,
    pub tag: ArgTag,
}

/// The borrowed form of `Use`.
#[derive(Clone, Copy)]
pub struct UseRef<'a> {
    pub storage: &'a Arc<Storage>,
    pub access: Access,
    pub tag: ArgTag,
}

impl UseRef<'_> {
    pub fn to_owned(&self) -> Use {
        Use { storage: self.storage.clone(), access: self.access, tag: self.tag }
    }
}

#[derive(Clone)]
pub struct Command {
    pub work: Work,
    pub uses: SmallVec<[Use; 4]>,
    /// Key of the cost model: the same kernel on the same sizes has the same key. 0 means unknown.
    pub cost_key: u64,
}
