//! Graphs: nodes in the order they were added, which their dependencies respect.

use std::ffi::c_void;

use crate::api::{exports, get, put};
use crate::device::check_device;
use crate::kernel::{Launch, prepare};
use crate::state::*;
use crate::stream::{Op, Place, enqueue};

pub(crate) type Graph = Vec<Node>;

#[derive(Clone)]
pub(crate) struct Node {
    pub op: Op,
    /// Where it runs; 0 for a node that does nothing.
    pub context: usize,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNodeParams {
    function: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *const *const c_void,
    extra: *const *const c_void,
    kernel: usize,
    context: usize,
}

/// One side of `CUDA_MEMCPY3D_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CopySide {
    position: [usize; 4],
    memory_type: u32,
    host: u64,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

impl CopySide {
    fn place(&self) -> Result<Place, i32> {
        match self.memory_type {
            _ if self.position != [0; 4] => Err(INVALID_VALUE),
            1 => Ok(Place::Host(self.host)),
            2 => Ok(Place::Device(self.device)),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// `CUDA_MEMCPY3D_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3d {
    src: CopySide,
    dst: CopySide,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemsetNodeParams {
    dst: u64,
    pitch: usize,
    value: u32,
    element_size: u32,
    width: usize,
    height: usize,
}

/// The attribute of a launch that may start before its predecessor has ended.
const EARLY: (u32, [u32; 3]) = (6, [1, 0, 0]);
const COOPERATIVE: u32 = 2;

/// A context that is alive: a device's own, or a green one.
fn check_context(state: &State, context: usize) -> Result<(), i32> {
    let device = device_of(context).is_some_and(|device| check_device(state, device).is_ok());
    if device || state.green.knows(context) { Ok(()) } else { Err(INVALID_CONTEXT) }
}

/// Add a node whose dependencies are distinct nodes of the same graph.
fn add(state: &mut State, node: *mut usize, graph: usize, after: *const usize, count: usize, made: Node) -> Outcome {
    let mut seen = std::collections::HashSet::new();
    for i in 0..count {
        // SAFETY: the array has the length the caller gives.
        let earlier = get(unsafe { after.add(i) })?;
        if state.nodes.get(&earlier).is_none_or(|(owner, _)| *owner != graph) || !seen.insert(earlier) {
            return Err(INVALID_VALUE);
        }
    }
    if !made.op.valid(state) {
        return Err(INVALID_VALUE);
    }
    let handle = state.handle();
    let nodes = state.graphs.get_mut(&graph).ok_or(INVALID_HANDLE)?;
    nodes.push(made);
    let position = nodes.len() - 1;
    state.nodes.insert(handle, (graph, position));
    put(node, handle)
}

/// Change a node of an executable by its handle in the graph that was instantiated, which must still be there.
fn change(state: &mut State, exec: usize, node: usize, change: impl FnOnce(&mut Op) -> bool) -> Outcome {
    let (_, position) = *state.nodes.get(&node).ok_or(INVALID_HANDLE)?;
    let nodes = state.execs.get_mut(&exec).ok_or(INVALID_HANDLE)?;
    let known = nodes.get_mut(position).ok_or(INVALID_VALUE)?;
    if change(&mut known.op) { Ok(()) } else { Err(INVALID_VALUE) }
}

exports! {
    needs Health fn cuGraphCreate(state; graph: *mut usize, flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.graphs.insert(handle, Graph::new());
        put(graph, handle)
    }

    needs Health fn cuGraphAddKernelNode_v2(
        state; node: *mut usize, graph: usize, after: *const usize, count: usize, params: *const KernelNodeParams,
    ) {
        let p = get(params)?;
        check_context(state, p.context)?;
        if p.function != 0 {
            return Err(INVALID_VALUE);
        }
        let launch = prepare(state, p.context, p.kernel, p.grid, p.block, p.shared, p.params, p.extra)?;
        add(state, node, graph, after, count, Node { op: Op::Launch(launch), context: p.context })
    }

    needs Health fn cuGraphKernelNodeSetAttribute(state; node: usize, attribute: u32, value: *const [u32; 16]) {
        let value = get(value)?;
        let (graph, position) = *state.nodes.get(&node).ok_or(INVALID_HANDLE)?;
        match state.graphs.get_mut(&graph).and_then(|nodes| nodes.get_mut(position)).map(|node| &mut node.op) {
            // As drivers do: a cooperative kernel comes into a graph by a capture.
            Some(Op::Launch(_)) if attribute == COOPERATIVE => return Err(INVALID_VALUE),
            Some(Op::Launch(launch)) => launch.attributes.push((attribute, [value[0], value[1], value[2]])),
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    needs Health fn cuGraphAddDependencies_v2(
        state; graph: usize, from: *const usize, to: *const usize, data: *const [u8; 8], count: usize,
    ) {
        for i in 0..count {
            // SAFETY: the arrays have the length the caller gives.
            let (from, to, data) = unsafe { (get(from.add(i))?, get(to.add(i))?, get(data.add(i))?) };
            let position = |node: usize| state.nodes.get(&node).filter(|(owner, _)| *owner == graph).map(|(_, at)| *at);
            let (Some(_), Some(at)) = (position(from), position(to)) else { return Err(INVALID_VALUE) };
            match state.graphs.get_mut(&graph).and_then(|nodes| nodes.get_mut(at)).map(|node| &mut node.op) {
                // The log shows a kernel that may start early as it does one launched so.
                Some(Op::Launch(launch)) if data[2] == 1 => {
                    if !launch.attributes.contains(&EARLY) {
                        launch.attributes.push(EARLY);
                    }
                }
                Some(_) if data[2] == 0 => {}
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }

    needs Health fn cuGraphAddMemcpyNode(
        state; node: *mut usize, graph: usize, after: *const usize, count: usize, params: *const Copy3d, context: usize,
    ) {
        let p = get(params)?;
        check_context(state, context)?;
        if p.height != 1 || p.depth != 1 || p.width_bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let op = Op::Copy { dst: p.dst.place()?, src: p.src.place()?, bytes: p.width_bytes };
        add(state, node, graph, after, count, Node { op, context })
    }

    needs Health fn cuGraphAddMemsetNode(
        state; node: *mut usize, graph: usize, after: *const usize, count: usize, params: *const MemsetNodeParams,
        context: usize,
    ) {
        let p = get(params)?;
        check_context(state, context)?;
        if p.height != 1 || !matches!(p.element_size, 1 | 2 | 4) || p.width == 0 {
            return Err(INVALID_VALUE);
        }
        let op = Op::Fill { dst: p.dst, value: p.value, width: p.element_size as usize, count: p.width };
        add(state, node, graph, after, count, Node { op, context })
    }

    needs Health fn cuGraphAddEmptyNode(state; node: *mut usize, graph: usize, after: *const usize, count: usize) {
        add(state, node, graph, after, count, Node { op: Op::Empty, context: 0 })
    }

    needs Health fn cuGraphAddChildGraphNode(
        state; node: *mut usize, graph: usize, after: *const usize, count: usize, child: usize,
    ) {
        let nodes = state.graphs.get(&child).ok_or(INVALID_HANDLE)?;
        let context = nodes.first().map_or(0, |node| node.context);
        let op = Op::Graph(nodes.iter().map(|node| node.op.clone()).collect());
        add(state, node, graph, after, count, Node { op, context })
    }

    needs Context fn cuGraphInstantiateWithFlags(state; exec: *mut usize, graph: usize, _flags: u64) {
        let nodes = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?.clone();
        let handle = state.handle();
        state.execs.insert(handle, nodes);
        put(exec, handle)
    }

    needs Context fn cuGraphExecKernelNodeSetParams_v2(
        state; exec: usize, node: usize, params: *const KernelNodeParams,
    ) {
        let p = get(params)?;
        check_context(state, p.context)?;
        let made = prepare(state, p.context, p.kernel, p.grid, p.block, p.shared, p.params, p.extra)?;
        change(state, exec, node, |op| match op {
            // Attributes stay, and so does the kernel.
            Op::Launch(known) if known.entry == made.entry => {
                *known = Launch { attributes: known.attributes.clone(), ..made };
                true
            }
            _ => false,
        })
    }

    needs Context fn cuGraphExecMemcpyNodeSetParams(
        state; exec: usize, node: usize, params: *const Copy3d, context: usize,
    ) {
        let p = get(params)?;
        check_context(state, context)?;
        if p.height != 1 || p.depth != 1 || p.width_bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let made = Op::Copy { dst: p.dst.place()?, src: p.src.place()?, bytes: p.width_bytes };
        if !made.valid(state) {
            return Err(INVALID_VALUE);
        }
        change(state, exec, node, |op| {
            let same = matches!(op, Op::Copy { .. });
            if same {
                *op = made;
            }
            same
        })
    }

    needs Context fn cuGraphExecMemsetNodeSetParams(
        state; exec: usize, node: usize, params: *const MemsetNodeParams, context: usize,
    ) {
        let p = get(params)?;
        check_context(state, context)?;
        if p.height != 1 || !matches!(p.element_size, 1 | 2 | 4) || p.width == 0 {
            return Err(INVALID_VALUE);
        }
        let made = Op::Fill { dst: p.dst, value: p.value, width: p.element_size as usize, count: p.width };
        if !made.valid(state) {
            return Err(INVALID_VALUE);
        }
        change(state, exec, node, |op| {
            let same = matches!(op, Op::Fill { .. });
            if same {
                *op = made;
            }
            same
        })
    }

    needs Context fn cuGraphUpload(state; exec: usize, stream: usize) {
        if !state.execs.contains_key(&exec) {
            return Err(INVALID_HANDLE);
        }
        enqueue(state, stream, Op::Empty)
    }

    needs Context fn cuGraphLaunch(state; exec: usize, stream: usize) {
        let nodes = state.execs.get(&exec).ok_or(INVALID_HANDLE)?;
        for node in nodes.iter().filter(|node| node.context != 0) {
            check_context(state, node.context)?;
        }
        let ops = nodes.iter().map(|node| node.op.clone()).collect();
        enqueue(state, stream, Op::Graph(ops))
    }

    needs Health fn cuGraphDestroy(state; graph: usize) {
        state.graphs.remove(&graph).ok_or(INVALID_HANDLE)?;
        state.nodes.retain(|_, (owner, _)| *owner != graph);
        Ok(())
    }

    needs Health fn cuGraphExecDestroy(state; exec: usize) {
        state.execs.remove(&exec).map(drop).ok_or(INVALID_HANDLE)
    }
}
