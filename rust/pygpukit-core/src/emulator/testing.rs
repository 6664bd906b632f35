//! Runs PTX texts in tests.

use std::sync::Arc;

use super::{Image, Launch, Memory, Options, Summary};
use crate::memory::registry::Extent;

/// Every address is valid: tests pass pointers of their own.
pub(crate) struct Everything;

impl Memory for Everything {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        (address > 4096).then_some((4096, 1 << 48))
    }

    /// For the checker memory is made of pieces that it can keep a shadow of.
    fn array(&self, address: u64) -> Option<Extent> {
        self.find(address).map(|_| Extent { start: address & !(PIECE - 1), bytes: PIECE, written: None })
    }
}

const PIECE: u64 = 1 << 20;

/// A launch of a kernel of a text, `k` unless another is named.
pub(crate) struct Case<'a> {
    pub text: &'a str,
    pub kernel: &'a str,
    pub blocks: u32,
    pub threads: u32,
    pub cluster: u32,
    pub shared: u32,
    pub options: Options,
}

impl<'a> Case<'a> {
    pub fn new(text: &'a str, blocks: u32, threads: u32) -> Case<'a> {
        let options = Options { max_instructions: Some(200_000_000), ..Options::default() };
        Case { text, kernel: "k", blocks, threads, cluster: 0, shared: 0, options }
    }

    /// Run it; arguments are cut to the size of their parameters.
    pub fn run(&self, args: &[u64]) -> Result<Summary, String> {
        self.run_bytes(&args.iter().map(|arg| arg.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    /// As `run`, with arguments of any size.
    pub fn run_bytes(&self, args: &[Vec<u8>]) -> Result<Summary, String> {
        let mut data = Aligned::new(&[0u8; 0]);
        let image = Image::load::<String>(self.text, |bytes| {
            data = Aligned::new(&vec![0u8; bytes]);
            Ok(data.address())
        });
        let image = image.map_err(|error| error.unwrap_or_else(|error| error))?;
        let (kernel, _) = image.kernel(self.kernel).ok_or("no such kernel")?;
        let params = image.params(kernel);
        assert_eq!(params.len(), args.len(), "arguments of the kernel");
        let mut bytes = vec![0; params.last().map_or(0, |(offset, size)| offset + size)];
        for ((offset, size), value) in params.into_iter().zip(args) {
            bytes[offset..offset + size].copy_from_slice(&value[..size]);
        }
        let launch = Launch {
            kernel,
            name: self.kernel,
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            shared: self.shared,
            cluster: [self.cluster, 0, 0],
            cooperative: false,
            args: &bytes,
            arrays: &[],
        };
        image.launch(&launch, Arc::new(Everything), self.options.clone())?.wait()
    }
}

/// A kernel around instructions. Its parameters are three pointers, in `%rd0` to `%rd2`; `%r0` is the thread in its
/// block, `%r1` the block, `%r2` the thread in the grid; `%rd3` and `%rd4` point to this thread's word at the first two
/// pointers, and `%rd5` and `%rd6` to its double word.
pub(crate) fn kernel(body: &str) -> String {
    format!(
        "
.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2) {{
    .reg .pred %p<40>;
    .reg .b16 %h<40>;
    .reg .b32 %r<80>;
    .reg .b64 %rd<80>;
    ld.param.u64 %rd0, [p0];
    ld.param.u64 %rd1, [p1];
    ld.param.u64 %rd2, [p2];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r2, %r1, %r3, %r0;
    mad.wide.u32 %rd3, %r2, 4, %rd0;
    mad.wide.u32 %rd4, %r2, 4, %rd1;
    mad.wide.u32 %rd5, %r2, 8, %rd0;
    mad.wide.u32 %rd6, %r2, 8, %rd1;
{body}
    ret;
}}
"
    )
}

/// Run instructions, see `kernel`, over three buffers.
pub(crate) fn run<A: Copy, B: Copy, C: Copy>(
    body: &str,
    (blocks, threads): (u32, u32),
    (a, b, c): (&mut [A], &mut [B], &mut [C]),
) -> Result<Summary, String> {
    let text = kernel(body);
    let (mut first, mut second, mut third) = (Aligned::new(a), Aligned::new(b), Aligned::new(c));
    let result = Case::new(&text, blocks, threads).run(&[first.address(), second.address(), third.address()]);
    first.copy_to(a);
    second.copy_to(b);
    third.copy_to(c);
    result
}

/// A copy of values, aligned as device memory is.
pub(crate) struct Aligned(Vec<u8>, usize);

impl Aligned {
    pub fn new<T: Copy>(values: &[T]) -> Aligned {
        let bytes = size_of_val(values);
        let mut memory = vec![0; bytes + 256];
        let start = memory.as_ptr().align_offset(256);
        // SAFETY: the vector has this many bytes from there on.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), memory.as_mut_ptr().add(start), bytes) };
        Aligned(memory, start)
    }

    pub fn address(&mut self) -> u64 {
        self.0[self.1..].as_mut_ptr() as u64
    }

    pub fn copy_to<T: Copy>(&self, values: &mut [T]) {
        let bytes = size_of_val(values);
        // SAFETY: as in `new`; the values were made of such bytes, or are plain numbers.
        unsafe { std::ptr::copy_nonoverlapping(self.0[self.1..].as_ptr(), values.as_mut_ptr().cast(), bytes) };
    }
}
