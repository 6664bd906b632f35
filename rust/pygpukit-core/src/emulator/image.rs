//! A loaded PTX text, and launches of its kernels.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::check::Ended;
use super::cluster::MAX_CLUSTER;
use super::code::Code;
use super::grid::{Grid, Options, Run, Summary};
use super::lower::{Data, LowerError, lower};
use super::memory::{GridBarrier, Memory};
use super::ptx;
use crate::command::ArrayArg;
use crate::device::KernelAttributes;

/// A PTX text ready to run.
pub struct Image {
    code: Arc<Code>,
    /// Address of the module's variables; 0 when it has none.
    pub data: u64,
}

impl Image {
    /// Read and lower a text. `allocate` gives memory for the module's variables.
    pub fn load<E>(text: &str, allocate: impl FnOnce(usize) -> Result<u64, E>) -> Result<Image, Result<String, E>> {
        let module = ptx::parse(text).map_err(|error| Ok(error.to_string()))?;
        enum Failure<E> {
            Lower(LowerError),
            Allocate(E),
        }
        impl<E> From<LowerError> for Failure<E> {
            fn from(error: LowerError) -> Failure<E> {
                Failure::Lower(error)
            }
        }
        let lowered = lower(&module, text, |bytes| allocate(bytes).map_err(Failure::Allocate));
        let (code, data) = lowered.map_err(|failure| match failure {
            Failure::Lower(error) => Ok(error.to_string()),
            Failure::Allocate(error) => Err(error),
        })?;
        let (code, Data { bytes, init, base }) = (code, data);
        if bytes > 0 {
            // SAFETY: `allocate` gave this many bytes at this address, and nobody else knows of them yet.
            unsafe {
                std::ptr::write_bytes(base as *mut u8, 0, bytes);
                for (offset, values) in &init {
                    std::ptr::copy_nonoverlapping(values.as_ptr(), (base as *mut u8).add(*offset), values.len());
                }
            }
        }
        Ok(Image { code: Arc::new(code), data: base })
    }

    /// Tell which text it was compiled from, under the name the compiler knew.
    pub fn set_source(&self, file: &str, text: &str) {
        let _ = self.code.source.set((file.to_string(), text.to_string()));
    }

    /// Index of a kernel, and what it needs.
    pub fn kernel(&self, name: &str) -> Option<(usize, KernelAttributes)> {
        let index = self.code.functions.iter().position(|f| f.entry && f.name == name && f.frame > 0)?;
        let function = &self.code.functions[index];
        let attributes = KernelAttributes {
            registers: 0,
            static_shared: function.static_shared,
            local_bytes: function.local,
            const_bytes: 0,
            max_threads: function.max_threads,
        };
        Some((index, attributes))
    }

    /// Names of the kernels.
    pub fn kernels(&self) -> Vec<&str> {
        self.code.functions.iter().filter(|f| f.entry && f.frame > 0).map(|f| f.name.as_str()).collect()
    }

    /// Address and bytes of a variable in global or constant memory.
    pub fn variable(&self, name: &str) -> Option<(u64, usize)> {
        let found = self.code.variables.iter().find(|variable| variable.name == name)?;
        Some((found.start, found.bytes as usize))
    }

    /// Offset and size of each parameter of a kernel.
    pub fn params(&self, kernel: usize) -> Vec<(usize, usize)> {
        let params = self.code.functions.get(kernel).map(|f| f.params.as_slice()).unwrap_or_default();
        params.iter().map(|&(offset, size)| (offset as usize, size as usize)).collect()
    }
}

/// A kernel and the shape of its launch.
pub struct Launch<'a> {
    pub kernel: usize,
    pub name: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub cluster: [u32; 3],
    pub cooperative: bool,
    pub args: &'a [u8],
    /// Arrays among the arguments, for reports of the checker.
    pub arrays: &'a [ArrayArg],
}

/// A launch that has begun.
pub struct Running(Arc<Run>);

impl Image {
    /// Begin a launch. The caller then calls `work` or `wait`.
    pub fn launch(&self, launch: &Launch<'_>, memory: Arc<dyn Memory>, options: Options) -> Result<Running, String> {
        let Some(function) = self.code.functions.get(launch.kernel) else {
            return Err(format!("kernel '{}' is not loaded", launch.name));
        };
        let end = function.params.last().map_or(0, |(offset, size)| (offset + size) as usize);
        if launch.args.len() < end {
            return Err(format!("kernel '{}' takes {end} bytes of arguments, not {}", launch.name, launch.args.len()));
        }
        if let Some(required) = function.required_threads
            && required.iter().map(|&n| n.max(1)).ne(launch.block.iter().copied())
        {
            return Err(format!("kernel '{}' must be launched with blocks of {required:?} threads", launch.name));
        }
        let mut args = vec![0u64; launch.args.len().div_ceil(8)];
        // SAFETY: the vector has at least as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(launch.args.as_ptr(), args.as_mut_ptr().cast(), launch.args.len());
        }
        let fixed = function.cluster.filter(|c| c[0] > 0);
        let cluster = fixed.unwrap_or(launch.cluster).map(|n| n.max(1));
        let size: u64 = cluster.iter().map(|&n| u64::from(n)).product();
        if size > MAX_CLUSTER {
            return Err(format!(
                "kernel '{}' cannot be launched with clusters of {cluster:?} blocks: the most is {MAX_CLUSTER} in all",
                launch.name
            ));
        }
        if (0..3).any(|i| !launch.grid[i].is_multiple_of(cluster[i])) {
            return Err(format!(
                "kernel '{}' has clusters of {cluster:?} blocks, of which the grid {:?} is not a multiple",
                launch.name, launch.grid
            ));
        }
        let barrier = launch.cooperative.then(|| Arc::new(GridBarrier::new(memory.clone())));
        let workspace = barrier.as_ref().map_or(0, |barrier| barrier.address());
        let memory = barrier.map_or(memory, |barrier| barrier);
        let grid = Grid {
            code: self.code.clone(),
            workspace,
            kernel: launch.kernel,
            name: launch.name.to_string(),
            blocks: launch.grid,
            threads: launch.block,
            cluster,
            dynamic_shared: launch.shared,
            cooperative: launch.cooperative,
            args,
            arg_bytes: launch.args.len(),
            memory,
            options,
            started: Instant::now(),
        };
        Ok(Running(Run::start(grid, launch.arrays, true)))
    }
}

impl Running {
    /// Take part in the work until it ends or the time is over; its result, or None in the latter case.
    pub fn work(&self, time: Duration) -> Option<Result<Summary, String>> {
        let until = Instant::now() + time;
        if self.0.work(Some(until)) {
            return self.0.wait(Some(until.saturating_duration_since(Instant::now())));
        }
        None
    }

    /// Take part in the work until the end.
    pub fn wait(&self) -> Result<Summary, String> {
        self.0.work(None);
        self.0.wait(None).unwrap_or_else(|| Err("the launch did not end".to_string()))
    }

    /// What it touched, once it has ended without a fault, if that was kept.
    pub fn ended(&self) -> Option<Ended> {
        self.0.ended()
    }

    pub fn interrupt(&self) {
        self.0.interrupt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Everything;

    impl Memory for Everything {
        fn find(&self, address: u64) -> Option<(u64, u64)> {
            (address > 4096).then_some((4096, 1 << 48))
        }
    }

    const SUM: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry sum(.param .u64 p0, .param .u32 p1) {
    .reg .pred %p<3>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [p0];
    ld.param.u32 %r1, [p1];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mov.u32 %r6, 0;
    mov.u32 %r7, 0;
LOOP:
    add.s32 %r6, %r6, %r7;
    add.s32 %r7, %r7, 1;
    setp.le.s32 %p2, %r7, %r5;
    @%p2 bra LOOP;
    mul.wide.s32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r6;
DONE:
    ret;
}
";

    #[test]
    fn loops_of_different_lengths() {
        let image = Image::load::<String>(SUM, |_| Ok(0)).unwrap_or_else(|e| panic!("{e:?}"));
        let (kernel, _) = image.kernel("sum").expect("the kernel");
        let mut out = vec![u32::MAX; 300];
        let mut args = (out.as_mut_ptr() as u64).to_le_bytes().to_vec();
        args.extend(290u32.to_le_bytes());
        let launch = Launch {
            kernel,
            name: "sum",
            grid: [3, 1, 1],
            block: [100, 1, 1],
            shared: 0,
            cluster: [0; 3],
            cooperative: false,
            args: &args,
            arrays: &[],
        };
        let running = image.launch(&launch, Arc::new(Everything), Options::default()).expect("a launch");
        running.wait().expect("no fault");
        for (i, value) in out.iter().enumerate() {
            let want = if i < 290 { (i * (i + 1) / 2) as u32 } else { u32::MAX };
            assert_eq!(*value, want, "element {i}");
        }
    }
}
