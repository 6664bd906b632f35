//! Runs PTX texts in tests.

use std::sync::Arc;

use super::{Image, Launch, Memory, Options, Summary};

/// Every address a test may use is valid.
struct Everything;

impl Memory for Everything {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        (address > 4096).then_some((4096, 1 << 48))
    }
}

/// A launch of the kernel `k` of a text.
pub(crate) struct Case<'a> {
    pub text: &'a str,
    pub blocks: u32,
    pub threads: u32,
    pub shared: u32,
    pub options: Options,
}

impl<'a> Case<'a> {
    pub fn new(text: &'a str, blocks: u32, threads: u32) -> Case<'a> {
        let options = Options { max_instructions: Some(200_000_000), ..Options::default() };
        Case { text, blocks, threads, shared: 0, options }
    }

    /// Run it; arguments are cut to the size of their parameters.
    pub fn run(&self, args: &[u64]) -> Result<Summary, String> {
        let no_data = |bytes: usize| Ok::<_, String>(Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()));
        let image = Image::load(self.text, |bytes| no_data(bytes).map(|data| data.as_mut_ptr() as u64));
        let image = image.map_err(|error| error.unwrap_or_else(|error| error))?;
        let (kernel, _) = image.kernel("k").ok_or("no kernel is named k")?;
        let params = image.params(kernel);
        assert_eq!(params.len(), args.len(), "arguments of the kernel");
        let mut bytes = vec![0; params.last().map_or(0, |(offset, size)| offset + size)];
        for ((offset, size), value) in params.into_iter().zip(args) {
            bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        let launch = Launch {
            kernel,
            name: "k",
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            shared: self.shared,
            cluster: [0; 3],
            cooperative: false,
            args: &bytes,
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
pub(crate) fn run<A, B, C>(
    body: &str,
    (blocks, threads): (u32, u32),
    buffers: (&mut [A], &mut [B], &mut [C]),
) -> Result<Summary, String> {
    let text = kernel(body);
    let (a, b, c) = buffers;
    Case::new(&text, blocks, threads).run(&[a.as_mut_ptr() as u64, b.as_mut_ptr() as u64, c.as_mut_ptr() as u64])
}
