//! Matrix instructions through PTX, against exact arithmetic and the tables of the PTX manual.

mod access;
mod kernels;
mod oracle;
mod products;

use std::sync::Arc;

use crate::emulator::{Image, Launch, Memory, Options};
use crate::random::Random;

/// Only the buffers of a test are memory.
struct Buffers(Vec<(u64, u64)>);

impl Memory for Buffers {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        self.0.iter().copied().find(|(start, end)| (*start..*end).contains(&address))
    }
}

/// Bytes at an address that suits every instruction.
struct Buffer {
    lines: Vec<[u64; 8]>,
    bytes: usize,
    skip: usize,
}

impl Buffer {
    fn new(data: &[u8]) -> Buffer {
        let lines = vec![[0; 8]; data.len().div_ceil(64) + 1];
        let skip = lines.as_ptr().cast::<u8>().align_offset(64);
        let mut buffer = Buffer { lines, bytes: data.len(), skip };
        // SAFETY: the lines have room for the data after the bytes skipped for alignment.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.pointer(), data.len()) };
        buffer
    }

    fn words(data: &[u32]) -> Buffer {
        Buffer::new(&data.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    fn pointer(&mut self) -> *mut u8 {
        // SAFETY: `skip` is less than the extra line.
        unsafe { self.lines.as_mut_ptr().cast::<u8>().add(self.skip) }
    }

    fn read(&mut self) -> Vec<u8> {
        // SAFETY: inside the lines, and initialised.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.bytes) }.to_vec()
    }

    fn read_words(&mut self) -> Vec<u32> {
        self.read().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn read_doubles(&mut self) -> Vec<u64> {
        let words = self.read_words();
        words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect()
    }
}

/// The error of a text that cannot be run.
fn load_error(text: &str) -> String {
    match Image::load::<String>(text, |_| Ok(0)) {
        Ok(_) => panic!("this text must be refused:\n{text}"),
        Err(error) => error.unwrap_or_else(|error| error),
    }
}

/// Run a kernel with pointers to buffers and then numbers as its arguments.
fn launch(
    text: &str,
    kernel: &str,
    grid: [u32; 3],
    threads: u32,
    buffers: &mut [&mut Buffer],
    numbers: &[u32],
    options: Options,
) -> Result<(), String> {
    let image = Image::load::<String>(text, |_| Ok(0)).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
    let (index, _) = image.kernel(kernel).expect("the kernel");
    let mut args = Vec::new();
    let mut ranges = Vec::new();
    for buffer in buffers.iter_mut() {
        let start = buffer.pointer() as u64;
        args.extend(start.to_le_bytes());
        ranges.push((start, start + buffer.bytes as u64));
    }
    args.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let launch = Launch {
        kernel: index,
        name: kernel,
        grid,
        block: [threads, 1, 1],
        shared: 0,
        cluster: [0; 3],
        cooperative: false,
        args: &args,
        arrays: &[],
    };
    let running = image.launch(&launch, Arc::new(Buffers(ranges)), options)?;
    running.wait().map(|_| ())
}

/// Run a kernel of one block.
fn run(text: &str, threads: u32, buffers: &mut [&mut Buffer]) -> Result<(), String> {
    launch(text, "k", [1, 1, 1], threads, buffers, &[], Options::default())
}

/// A kernel `k` of this body with pointers as parameters `p0`, ... in `%p0`, ..., and the lane in `%lane`.
fn kernel(pointers: usize, body: &str) -> String {
    let params: Vec<_> = (0..pointers).map(|i| format!(".param .u64 p{i}")).collect();
    let loads: String = (0..pointers).map(|i| format!("ld.param.u64 %p{i}, [p{i}];\n")).collect();
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k({}) {{\n.reg .b64 %p<{}>;\n.reg .b32 %lane;\n\
         .reg .b64 %at;\n{loads}mov.u32 %lane, %tid.x;\n{body}\nret;\n}}\n",
        params.join(", "),
        pointers + 1
    )
}
