//! Images, kernels and launches. Kernels do not run: a launch is checked and written to the log.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;

use crate::api::{exports, get, put, text};
use crate::state::*;
use crate::stream::{Op, check_stream, enqueue};

const SHARED_DEFAULT: u32 = 49_152;
const SHARED_LIMIT: c_int = 232_448;
/// Launches kept in the log.
const LOG_LIMIT: usize = 1 << 16;

/// A launch as the log holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub entry: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub args: Vec<u8>,
    /// Number of each launch attribute and the first words of its value.
    pub attributes: Vec<(u32, [u32; 3])>,
    /// Where it ran: a green context's, or the primary one.
    pub context: usize,
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { entry, grid, block, shared, args, attributes, .. } = self;
        let hex: String = args.iter().map(|byte| format!("{byte:02x}")).collect();
        write!(f, "{entry} grid={grid:?} block={block:?} shared={shared} args={hex} attributes={attributes:?}")
    }
}

impl State {
    pub(crate) fn remember(&mut self, launch: &Launch) {
        if self.launches.len() == LOG_LIMIT {
            self.launches.clear();
        }
        self.launches.push(launch.clone());
    }
}

pub(crate) struct Kernel {
    name: String,
    /// Offset and size of each parameter.
    params: Vec<(usize, usize)>,
    max_shared: u32,
}

impl Kernel {
    fn args_size(&self) -> usize {
        self.params.last().map_or(0, |(offset, size)| offset + size)
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: *const LaunchAttribute,
    attribute_count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

/// Variables of an image: lines `.global NAME[SIZE]`.
fn parse_variables(image: &str) -> Vec<(String, usize)> {
    let variable = |line: &str| {
        let (name, size) = line.split_once(".global ")?.1.split_once('[')?;
        Some((name.trim().to_string(), size.split_once(']')?.0.parse().ok().filter(|size| *size > 0)?))
    };
    image.lines().filter_map(variable).collect()
}

/// Kernels of an image: lines `.entry NAME(SIZE,SIZE,...)`; None when it has none or one cannot be read.
fn parse_image(image: &str) -> Option<Vec<Kernel>> {
    let mut kernels = Vec::new();
    for line in image.lines() {
        let Some((_, rest)) = line.split_once(".entry ") else { continue };
        let (name, sizes) = rest.split_once('(')?;
        let (sizes, _) = sizes.split_once(')')?;
        let mut params = Vec::new();
        let mut end = 0usize;
        for size in sizes.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            let size: usize = size.parse().ok().filter(|s| (1..=4096).contains(s))?;
            // Natural alignment: the largest power of two that divides the size, up to 16.
            let offset = end.next_multiple_of(1 << size.trailing_zeros().min(4));
            params.push((offset, size));
            end = offset + size;
        }
        kernels.push(Kernel { name: name.trim().to_string(), params, max_shared: SHARED_DEFAULT });
    }
    (!kernels.is_empty()).then_some(kernels)
}

/// The argument block behind the `extra` argument of a launch.
fn args_of(kernel: &Kernel, params: *const *const c_void, extra: *const *const c_void) -> Result<Vec<u8>, i32> {
    if !params.is_null() {
        return Err(INVALID_VALUE);
    }
    let (mut pointer, mut size) = (std::ptr::null::<u8>(), 0usize);
    if !extra.is_null() {
        // SAFETY: the list ends in 0 and holds marker and value pairs, as with the driver.
        unsafe {
            let mut at = extra;
            loop {
                match at.read() as usize {
                    0 => break,
                    1 => pointer = at.add(1).read().cast(),
                    2 => size = at.add(1).read().cast::<usize>().read(),
                    _ => return Err(INVALID_VALUE),
                }
                at = at.add(2);
            }
        }
    }
    if size < kernel.args_size() || (size > 0 && pointer.is_null()) {
        return Err(INVALID_VALUE);
    }
    if size == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's block has the size it claims.
    Ok(unsafe { std::slice::from_raw_parts(pointer, size) }.to_vec())
}

/// Check a launch and make its log entry.
#[allow(clippy::too_many_arguments)]
pub(crate) fn prepare(
    state: &State,
    context: usize,
    kernel: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *const *const c_void,
    extra: *const *const c_void,
) -> Result<Launch, i32> {
    let kernel = state.kernels.get(&kernel).ok_or(INVALID_HANDLE)?;
    let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
    if grid.contains(&0) || threads == 0 || threads > 1024 || block[2] > 64 || shared > kernel.max_shared {
        return Err(INVALID_VALUE);
    }
    let args = args_of(kernel, params, extra)?;
    Ok(Launch { entry: kernel.name.clone(), grid, block, shared, args, attributes: Vec::new(), context })
}

exports! {
    needs Context fn cuLibraryLoadData(
        state; library: *mut usize, code: *const c_char, _options: *mut c_int, _values: *mut *mut c_void, _count: u32,
        _library_options: *mut c_int, _library_values: *mut *mut c_void, _library_count: u32,
    ) {
        let image = text(code)?;
        let kernels = parse_image(&image).ok_or(INVALID_IMAGE)?;
        let mut variables = HashMap::new();
        for (name, bytes) in parse_variables(&image) {
            variables.insert(name, (state.memory.plain(bytes)?, bytes));
        }
        let mut table = HashMap::new();
        for kernel in kernels {
            let handle = state.handle();
            table.insert(kernel.name.clone(), handle);
            state.kernels.insert(handle, kernel);
        }
        let handle = state.handle();
        state.libraries.insert(handle, table);
        state.variables.insert(handle, variables);
        put(library, handle)
    }

    needs Context fn cuLibraryUnload(state; library: usize) {
        let table = state.libraries.remove(&library).ok_or(INVALID_HANDLE)?;
        for handle in table.values() {
            state.kernels.remove(handle);
        }
        for (address, _) in state.variables.remove(&library).unwrap_or_default().into_values() {
            state.memory.free_plain(address);
        }
        Ok(())
    }

    needs Context fn cuLibraryGetGlobal(
        state; address: *mut u64, bytes: *mut usize, library: usize, name: *const c_char,
    ) {
        let table = state.variables.get(&library).ok_or(INVALID_HANDLE)?;
        let (start, size) = *table.get(&text(name)?).ok_or(NOT_FOUND)?;
        put(bytes, size)?;
        put(address, start)
    }

    needs Context fn cuLibraryGetKernel(state; kernel: *mut usize, library: usize, name: *const c_char) {
        let table = state.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        put(kernel, *table.get(&text(name)?).ok_or(NOT_FOUND)?)
    }

    needs Context fn cuKernelGetFunction(state; function: *mut usize, kernel: usize) {
        if !state.kernels.contains_key(&kernel) {
            return Err(INVALID_HANDLE);
        }
        put(function, kernel)
    }

    needs Context fn cuFuncLoad(state; function: usize) {
        if state.kernels.contains_key(&function) { Ok(()) } else { Err(INVALID_HANDLE) }
    }

    needs Health fn cuKernelGetAttribute(state; value: *mut c_int, attribute: c_int, kernel: usize, _device: c_int) {
        let kernel = state.kernels.get(&kernel).ok_or(INVALID_HANDLE)?;
        match attribute {
            0 => put(value, 1024),
            1..=3 => put(value, 0),
            4 => put(value, 32),
            8 => put(value, kernel.max_shared as c_int),
            _ => Err(INVALID_VALUE),
        }
    }

    needs Health fn cuKernelSetAttribute(state; attribute: c_int, value: c_int, kernel: usize, _device: c_int) {
        let kernel = state.kernels.get_mut(&kernel).ok_or(INVALID_HANDLE)?;
        if attribute != 8 || !(0..=SHARED_LIMIT).contains(&value) {
            return Err(INVALID_VALUE);
        }
        kernel.max_shared = value as u32;
        Ok(())
    }

    needs Health fn cuKernelGetParamInfo(state; kernel: usize, index: usize, offset: *mut usize, size: *mut usize) {
        let kernel = state.kernels.get(&kernel).ok_or(INVALID_HANDLE)?;
        let (at, bytes) = *kernel.params.get(index).ok_or(INVALID_VALUE)?;
        put(offset, at)?;
        put(size, bytes)
    }

    needs Context fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        state; blocks: *mut c_int, function: usize, threads: c_int, shared: usize,
    ) {
        if !state.kernels.contains_key(&function) {
            return Err(INVALID_HANDLE);
        }
        let threads = usize::try_from(threads).ok().filter(|t| *t > 0).ok_or(INVALID_VALUE)?;
        let fits = if threads > 1024 { 0 } else { (2048 / threads.next_multiple_of(32)).min(32) };
        put(blocks, fits.min(233_472 / (shared + 1024)) as c_int)
    }

    needs Health fn cuLaunchKernelEx(
        state; config: *const LaunchConfig, kernel: usize, params: *const *const c_void, extra: *const *const c_void,
    ) {
        let config = get(config)?;
        let context = check_stream(state, config.stream)?.context;
        let mut launch = prepare(state, context, kernel, config.grid, config.block, config.shared, params, extra)?;
        for i in 0..config.attribute_count as usize {
            // SAFETY: the array has the length the configuration gives.
            let attribute = get(unsafe { config.attributes.add(i) })?;
            launch.attributes.push((attribute.id, [attribute.value[0], attribute.value[1], attribute.value[2]]));
        }
        enqueue(state, config.stream, Op::Launch(launch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_name_kernels_and_lay_out_parameters() {
        let kernels = parse_image("// x\n.visible .entry add(8,4, 8,1,2)\n.entry none()").unwrap();
        assert_eq!(kernels[0].name, "add");
        assert_eq!(kernels[0].params, [(0, 8), (8, 4), (16, 8), (24, 1), (26, 2)]);
        assert_eq!((kernels[1].name.as_str(), kernels[1].args_size()), ("none", 0));
        for bad in ["", "no kernels", ".entry x(", ".entry x(a)", ".entry x(0)", ".entry x\n"] {
            assert!(parse_image(bad).is_none(), "{bad:?}");
        }
    }
}
