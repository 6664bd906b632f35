//! Building an executable graph from recorded commands, node by node.

use std::collections::HashMap;
use std::ffi::c_void;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::command::{Copy, CopyKind, Fill, KernelLaunch, Work};
use crate::cuda::capture::{Capture, Captured};
use crate::cuda::device::CudaDevice;
use crate::cuda::driver::{Driver, call};
use crate::cuda::enqueue::{attributes_of, check_width, extra_of};
use crate::cuda::status::Status;
use crate::cuda::types::*;
use crate::device::{GraphNode, RawGraph, RawLane};
use crate::early::EARLY_CAPABILITY;
use crate::error::{Error, Result};

/// The graph under construction. Only the executable made of it is kept, unless nodes of that may change.
struct Draft<'a> {
    driver: &'a Driver,
    graph: Handle,
    /// Where the nodes run: the primary context, or a lane's.
    context: Handle,
    /// What libraries put on streams becomes nodes by a capture.
    capture: Capture<'a>,
    /// The device keeps it.
    kept: bool,
}

/// Graphs whose nodes may be changed in the executables made of them, by executable.
pub(super) type Drafts = Mutex<HashMap<usize, Kept>>;

/// Handles, as numbers.
pub(super) struct Kept {
    graph: usize,
    nodes: Vec<usize>,
    context: usize,
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // SAFETY: made by us and destroyed once. A failure here leaks a little host memory and nothing else.
        unsafe { (self.driver.api.cuGraphDestroy)(self.graph) };
    }
}

impl CudaDevice {
    pub(super) fn build_graph(&self, nodes: &[GraphNode<'_>], lane: Option<RawLane>) -> Result<RawGraph> {
        let context = lane.map_or(Ok(self.context()), |lane| self.lane_context(lane))?;
        let _bound = self.bind()?;
        let api = &self.driver.api;
        let starts_early = self.props.capability >= EARLY_CAPABILITY;
        let mut graph: Handle = std::ptr::null_mut();
        call!(self.driver, api, cuGraphCreate(&mut graph, 0))?;
        let capture = Capture::new(self, lane);
        let mut draft = Draft { driver: &self.driver, graph, context: context as Handle, capture, kept: false };
        let mut made: Vec<Handle> = Vec::with_capacity(nodes.len());
        for (index, node) in nodes.iter().enumerate() {
            let mut earlier: SmallVec<[usize; 4]> = node.after.iter().copied().collect();
            // The driver refuses an edge given twice.
            earlier.sort_unstable();
            earlier.dedup();
            if let Some(late) = earlier.iter().find(|&&e| e >= index) {
                return Err(Error::Graph(format!(
                    "graph node {index} waits for node {late}, which does not come before it"
                )));
            }
            let after: SmallVec<[Handle; 4]> = earlier.iter().map(|&e| made[e]).collect();
            let early = self.driver.edges.as_ref().filter(|_| node.early && starts_early);
            match early {
                Some(edges) => {
                    let added = draft.add(index, &node.command.work, &[])?;
                    let to: SmallVec<[Handle; 4]> = after.iter().map(|_| added).collect();
                    let data: SmallVec<[EdgeData; 4]> = after.iter().map(|_| EdgeData::PROGRAMMATIC).collect();
                    let (from, count) = (after.as_ptr(), after.len());
                    call!(self.driver, edges, cuGraphAddDependencies(graph, from, to.as_ptr(), data.as_ptr(), count))?;
                    made.push(added);
                }
                None => made.push(draft.add(index, &node.command.work, &after)?),
            }
        }
        let mut exec: Handle = std::ptr::null_mut();
        call!(self.driver, api, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        // Uploaded ahead, so that the first replay costs what the later ones do.
        if let Err(error) = call!(self.driver, api, cuGraphUpload(exec, self.service_stream())) {
            // SAFETY: made above and not given out.
            let status = unsafe { (api.cuGraphExecDestroy)(exec) };
            self.deferred.note(self.driver.check("cuGraphExecDestroy", status));
            return Err(error);
        }
        if nodes.iter().any(|node| node.changes) && self.driver.updates.is_some() {
            draft.kept = true;
            let nodes = made.iter().map(|&node| node as usize).collect();
            self.drafts.lock().insert(exec as usize, Kept { graph: graph as usize, nodes, context });
        }
        Ok(RawGraph(exec as usize))
    }

    /// Launches under way keep what they were launched with, so nothing is waited for.
    pub(super) fn update_graph(&self, graph: RawGraph, works: &[(usize, &Work)]) -> Result<bool> {
        let Some(api) = &self.driver.updates else { return Ok(false) };
        let drafts = self.drafts.lock();
        let Some(kept) = drafts.get(&graph.0) else { return Ok(false) };
        let _bound = self.bind()?;
        let (exec, context) = (graph.0 as Handle, kept.context as Handle);
        for (index, work) in works {
            let Some(node) = kept.nodes.get(*index).map(|&node| node as Handle) else { return Ok(false) };
            // SAFETY: the handles are those of this executable's own graph, which is kept, and the parameters live for the call.
            let status = unsafe {
                match work {
                    Work::Kernel(launch) => {
                        let mut size = 0;
                        let mut extra = extra_of(&launch.args, &mut size);
                        let params = kernel_params(launch, &mut extra, context);
                        (api.cuGraphExecKernelNodeSetParams)(exec, node, &params)
                    }
                    Work::Copy(copy) if copy.bytes > 0 => {
                        (api.cuGraphExecMemcpyNodeSetParams)(exec, node, &copy_params(copy), context)
                    }
                    Work::Fill(fill) if fill.count > 0 => {
                        (api.cuGraphExecMemsetNodeSetParams)(exec, node, &fill_params(fill), context)
                    }
                    _ => continue,
                }
            };
            // What a driver does not change in place is built anew.
            if status != Status::SUCCESS {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn drop_draft(&self, graph: RawGraph) {
        let kept = self.drafts.lock().remove(&graph.0);
        if let Some(kept) = kept {
            // SAFETY: kept by `build_graph` and destroyed once.
            let status = unsafe { (self.driver.api.cuGraphDestroy)(kept.graph as Handle) };
            self.deferred.note(self.driver.check("cuGraphDestroy", status));
        }
    }
}

impl Draft<'_> {
    fn add(&self, index: usize, work: &Work, after: &[Handle]) -> Result<Handle> {
        match work {
            // The driver refuses the attribute on a node, but records a launch with it.
            Work::Kernel(launch) if launch.attributes.cooperative => {
                self.add_captured(self.capture.of_kernel(launch)?, after)
            }
            Work::Kernel(launch) => self.add_kernel(launch, after),
            Work::Copy(copy) if copy.bytes == 0 => self.add_empty(after),
            Work::Copy(copy) => self.add_copy(copy, after),
            Work::Fill(fill) => {
                check_width(fill)?;
                if fill.count == 0 { self.add_empty(after) } else { self.add_fill(fill, after) }
            }
            Work::Host(_) => Err(Error::Graph(format!(
                "graph node {index} is a host function: host work cannot be part of a CUDA graph. Keep operators that \
                 run on the CPU, and transfers to pageable host memory, out of the capture."
            ))),
            Work::Library(call) => self.add_captured(self.capture.of(&**call)?, after),
            Work::Graph(_) => Err(Error::Graph(format!(
                "graph node {index} is the replay of another graph: record its commands instead, graphs do not nest"
            ))),
        }
    }

    fn add_kernel(&self, launch: &KernelLaunch, after: &[Handle]) -> Result<Handle> {
        let api = &self.driver.api;
        let mut size = 0;
        let mut extra = extra_of(&launch.args, &mut size);
        let params = kernel_params(launch, &mut extra, self.context);
        let mut node: Handle = std::ptr::null_mut();
        let (count, first) = (after.len(), after.as_ptr());
        call!(self.driver, api, cuGraphAddKernelNode(&mut node, self.graph, first, count, &params))?;
        for attribute in attributes_of(&launch.attributes) {
            call!(self.driver, api, cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value))?;
        }
        Ok(node)
    }

    fn add_copy(&self, copy: &Copy, after: &[Handle]) -> Result<Handle> {
        let params = copy_params(copy);
        let mut node: Handle = std::ptr::null_mut();
        let (count, first) = (after.len(), after.as_ptr());
        let api = &self.driver.api;
        call!(self.driver, api, cuGraphAddMemcpyNode(&mut node, self.graph, first, count, &params, self.context))?;
        Ok(node)
    }

    fn add_fill(&self, fill: &Fill, after: &[Handle]) -> Result<Handle> {
        let params = fill_params(fill);
        let mut node: Handle = std::ptr::null_mut();
        let (count, first) = (after.len(), after.as_ptr());
        let api = &self.driver.api;
        call!(self.driver, api, cuGraphAddMemsetNode(&mut node, self.graph, first, count, &params, self.context))?;
        Ok(node)
    }

    /// What was put on a stream of the lane, as one node.
    fn add_captured(&self, captured: Captured<'_>, after: &[Handle]) -> Result<Handle> {
        let mut node: Handle = std::ptr::null_mut();
        let (count, first, child) = (after.len(), after.as_ptr(), captured.raw());
        let api = &self.driver.api;
        // The driver copies the graph into the node.
        call!(self.driver, api, cuGraphAddChildGraphNode(&mut node, self.graph, first, count, child))?;
        Ok(node)
    }

    /// A node that does nothing keeps the order around work of no size.
    fn add_empty(&self, after: &[Handle]) -> Result<Handle> {
        let mut node: Handle = std::ptr::null_mut();
        let (count, first) = (after.len(), after.as_ptr());
        call!(self.driver, self.driver.api, cuGraphAddEmptyNode(&mut node, self.graph, first, count))?;
        Ok(node)
    }
}

fn kernel_params(launch: &KernelLaunch, extra: &mut [*mut c_void; 5], context: Handle) -> KernelNodeParams {
    KernelNodeParams {
        function: std::ptr::null_mut(),
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        params: std::ptr::null_mut(),
        extra: if launch.args.is_empty() { std::ptr::null_mut() } else { extra.as_mut_ptr() },
        kernel: launch.kernel.raw().0 as Handle,
        context,
    }
}

fn copy_params(copy: &Copy) -> Copy3d {
    let (src, dst) = match copy.kind {
        CopyKind::HostToDevice => (host_side(copy.src), device_side(copy.dst)),
        CopyKind::DeviceToHost => (device_side(copy.src), host_side(copy.dst)),
        CopyKind::DeviceToDevice => (device_side(copy.src), device_side(copy.dst)),
    };
    // One row: pitches do not matter and may exceed what a pitch can hold.
    Copy3d { src, dst, width_bytes: copy.bytes, height: 1, depth: 1 }
}

fn fill_params(fill: &Fill) -> MemsetNodeParams {
    let Fill { dst, value, width, count } = *fill;
    MemsetNodeParams { dst, pitch: 0, value, element_size: width.into(), width: count, height: 1 }
}

fn host_side(address: u64) -> CopySide {
    CopySide { memory_type: MEMORY_TYPE_HOST, host: address as *mut c_void, ..no_side() }
}

fn device_side(address: u64) -> CopySide {
    CopySide { memory_type: MEMORY_TYPE_DEVICE, device: address, ..no_side() }
}

fn no_side() -> CopySide {
    CopySide {
        x_bytes: 0,
        y: 0,
        z: 0,
        lod: 0,
        memory_type: 0,
        host: std::ptr::null_mut(),
        device: 0,
        array: std::ptr::null_mut(),
        reserved: std::ptr::null_mut(),
        pitch: 0,
        height: 0,
    }
}
