//! For tests: run a PTX text on buffers of the test.

use std::sync::Arc;

use super::{Image, Launch, Memory, Options, Summary};

/// Every address is valid: tests pass pointers of their own.
struct Everything;

impl Memory for Everything {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        (address > 4096).then_some((4096, 1 << 48))
    }
}

/// An argument of a kernel.
pub(crate) enum Arg {
    Pointer(*mut u8),
    Word(u32),
}

impl Arg {
    pub fn to<T>(buffer: &mut [T]) -> Arg {
        Arg::Pointer(buffer.as_mut_ptr().cast())
    }
}

/// Load a text and run one of its kernels to the end.
pub(crate) fn run(text: &str, kernel: &str, grid: u32, block: u32, args: &[Arg]) -> Result<Summary, String> {
    let image = Image::load::<String>(text, |_| Ok(0)).map_err(|error| format!("{error:?}"))?;
    let (index, _) = image.kernel(kernel).ok_or("no such kernel")?;
    let mut bytes: Vec<u8> = Vec::new();
    for arg in args {
        match arg {
            Arg::Pointer(at) => {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                bytes.extend((*at as u64).to_le_bytes());
            }
            Arg::Word(value) => bytes.extend(value.to_le_bytes()),
        }
    }
    let launch = Launch {
        kernel: index,
        name: kernel,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        shared: 0,
        cluster: [0; 3],
        cooperative: false,
        args: &bytes,
    };
    image.launch(&launch, Arc::new(Everything), Options::default())?.wait()
}
