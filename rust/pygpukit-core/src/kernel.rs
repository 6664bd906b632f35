//! Loaded kernels: a library image on one device, and the entry points in it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::device::{KernelAttributes, RawKernel, RawLibrary, SharedDevice};
use crate::error::{Error, Result};
use crate::memory::Storage;
use crate::runtime::DeviceState;
use crate::slices::{Sliced, Slicer, Slicing};
use crate::sync::{SyncKind, may_sync, may_sync_briefly};

/// A kernel's name as a number, which launch records keep instead of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u32);

#[derive(Default)]
struct Names {
    all: Vec<Arc<str>>,
    by_name: HashMap<Arc<str>, u32>,
}

static NAMES: RwLock<Option<Names>> = RwLock::new(None);

impl Label {
    fn of(name: &str) -> Label {
        let mut names = NAMES.write();
        let names = names.get_or_insert_default();
        if let Some(&found) = names.by_name.get(name) {
            return Label(found);
        }
        let (number, text): (u32, Arc<str>) = (names.all.len() as u32, name.into());
        names.all.push(text.clone());
        names.by_name.insert(text, number);
        Label(number)
    }

    pub fn name(self) -> Arc<str> {
        let names = NAMES.read();
        names.as_ref().and_then(|n| n.all.get(self.0 as usize)).map_or_else(|| "?".into(), Arc::clone)
    }
}

/// How the CPU device's emulator runs a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// As the device was opened.
    #[default]
    AsDevice,
    On,
    /// Checked, in an order of warps and blocks drawn from this seed.
    Fuzz(u64),
}

/// What the scheduler and the graph builder must know of a kernel.
#[derive(Clone, Debug, Default)]
pub struct KernelMeta {
    /// May be launched in block ranges, as far as is known (`Kernel::set_slicer`).
    pub sliceable: bool,
    pub cooperative: bool,
    pub cluster: [u32; 3],
    /// Waits for its predecessor on the device, so that it may be launched early.
    pub programmatic: bool,
    /// The access of its arguments was read from their C types: one that is not const may be read, written or both.
    pub access_from_types: bool,
    /// On the CPU device: look for errors while it runs.
    pub check: Check,
}

/// An image loaded on one device; unloaded with its last kernel.
#[derive(Debug)]
pub struct Library {
    device: SharedDevice,
    raw: RawLibrary,
}

impl Library {
    pub fn load(device: &SharedDevice, image: &[u8]) -> Result<Arc<Library>> {
        let raw = may_sync(SyncKind::ModuleLoad, || device.library_load(image))?;
        Ok(Arc::new(Library { device: device.clone(), raw }))
    }

    /// Memory of a variable of the image (`__device__`, `__constant__`), by the name it has there. It keeps the image
    /// loaded until its last use has ended.
    pub fn variable(self: &Arc<Library>, state: &'static DeviceState, name: &str) -> Result<Arc<Storage>> {
        let (address, bytes) = may_sync(SyncKind::ModuleLoad, || self.device.library_variable(self.raw, name))?;
        Ok(Storage::outside(state, address, bytes, self.clone()))
    }

    /// Say which text it was compiled from, under the name the compiler knew it by: reports then quote it.
    pub fn set_source(&self, file: &str, text: &str) {
        self.device.library_source(self.raw, file, text);
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if crate::runtime::exiting() {
            return;
        }
        may_sync_briefly(|| self.device.library_unload(self.raw));
    }
}

#[derive(Debug)]
pub struct Kernel {
    name: String,
    label: Label,
    raw: RawKernel,
    attributes: KernelAttributes,
    meta: KernelMeta,
    /// Dynamic shared memory already allowed.
    shared_allowed: AtomicU32,
    slicing: Slicing,
    library: Arc<Library>,
}

impl Kernel {
    pub fn new(library: &Arc<Library>, entry: &str, name: &str, meta: KernelMeta) -> Result<Arc<Kernel>> {
        let (raw, attributes) = may_sync(SyncKind::ModuleLoad, || library.device.kernel_get(library.raw, entry))?;
        if meta.check != Check::AsDevice {
            crate::memory::registry::track();
        }
        let default_shared = library.device.props().shared_per_block.saturating_sub(attributes.static_shared);
        Ok(Arc::new(Kernel {
            name: name.to_string(),
            label: Label::of(name),
            raw,
            attributes,
            meta,
            shared_allowed: AtomicU32::new(default_shared),
            slicing: Slicing::default(),
            library: library.clone(),
        }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    pub fn label(&self) -> Label {
        self.label
    }

    pub fn raw(&self) -> RawKernel {
        self.raw
    }

    pub fn attributes(&self) -> &KernelAttributes {
        &self.attributes
    }

    /// Where the driver says the first `count` parameters lie; see `Device::kernel_params`.
    pub fn params(&self, count: usize) -> Option<Vec<(usize, usize)>> {
        self.device().kernel_params(self.raw, count)
    }

    pub fn meta(&self) -> &KernelMeta {
        &self.meta
    }

    pub fn device(&self) -> &SharedDevice {
        &self.library.device
    }

    pub fn library(&self) -> &Library {
        &self.library
    }

    /// Make sure a launch may use this much dynamic shared memory.
    #[inline]
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        if bytes <= self.shared_allowed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = self.device().props().shared_per_block_optin.saturating_sub(self.attributes.static_shared);
        if bytes > limit {
            return Err(Error::Launch(format!(
                "kernel '{}' asks for {bytes} bytes of dynamic shared memory; this device allows {limit} per block",
                self.name
            )));
        }
        self.device().kernel_set_max_shared(self.raw, bytes)?;
        self.shared_allowed.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Say what makes its variant that runs a range of blocks; asked once, when first needed.
    pub fn set_slicer(&self, slicer: Slicer) {
        self.slicing.set(slicer);
    }

    /// The variant that runs a range of blocks. None: there is none, or somebody else is making it now.
    pub fn sliced(&self) -> Result<Option<Arc<Sliced>>> {
        self.slicing.get()
    }

    /// Resident blocks per SM for this block size.
    pub fn occupancy(&self, block_threads: u32, shared: u32) -> Result<u32> {
        self.device().kernel_occupancy(self.raw, block_threads, shared)
    }
}
