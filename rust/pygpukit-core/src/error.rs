//! The one error type of the core. The Python crate maps it in one `match`.

use thiserror::Error;

pub type Result<T> = std::result::Result<T, Error>;

/// What an out-of-memory error tells its reader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    pub requested: usize,
    /// Bytes free on the device when the request failed.
    pub free: usize,
    pub total: usize,
    /// Bytes of a piece in which memory is taken from the device; 0 where it is taken as it is asked for.
    pub granule: usize,
    /// Name, bytes used and quota of the pool that refused, when a quota did.
    pub quota: Option<(String, usize, usize)>,
    /// Largest live allocations: bytes and a label (dtype, shape, pool).
    pub holders: Vec<(usize, String)>,
    /// Bytes that eviction could not take, by reason; empty where nothing evicts.
    pub stuck: Vec<(usize, &'static str)>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "out of memory: requested {}", human(self.requested))?;
        // What is free may be more than was asked for, and less than what has to be taken for it.
        let taken = self.requested.checked_next_multiple_of(self.granule.max(1)).unwrap_or(self.requested);
        if self.quota.is_none() && self.requested <= self.free && taken > self.free {
            let (taken, granule) = (human(taken), human(self.granule));
            write!(f, ", which takes {taken} (the device gives pages of {granule})")?;
        }
        match &self.quota {
            Some((name, used, quota)) => {
                write!(f, ", but pool '{name}' uses {} of its quota of {}", human(*used), human(*quota))?
            }
            None => write!(f, ", {} free of {} on the device", human(self.free), human(self.total))?,
        }
        if !self.holders.is_empty() {
            write!(f, ". Largest holders:")?;
            for (bytes, label) in &self.holders {
                write!(f, "\n  {:>10}  {label}", human(*bytes))?;
            }
        }
        if !self.stuck.is_empty() {
            let parts: Vec<String> = self.stuck.iter().map(|(bytes, why)| format!("{} {why}", human(*bytes))).collect();
            write!(f, "\nNot evicted: {}.", parts.join(", "))?;
        }
        write!(f, "\nDrop arrays that are no longer needed, use smaller batches, or raise the quota.")
    }
}

/// Bytes as a person writes them: "4.0 KiB", "1.5 GiB".
pub fn human(bytes: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[derive(Debug, Clone, Error)]
pub enum Error {
    /// libcuda could not be opened; the text lists what was searched.
    #[error("{0}")]
    DriverNotFound(String),
    /// The driver is there but too old or without a needed symbol.
    #[error("{0}")]
    DriverUnsupported(String),
    #[error("{0}")]
    NoDevice(String),
    /// A GPU below SM 80.
    #[error("{0}")]
    DeviceUnsupported(String),
    #[error("{0}")]
    NvrtcNotFound(String),
    #[error("{0}")]
    LibraryNotFound(String),
    /// A driver call failed: call, code, the driver's name and text for it, and our advice.
    #[error("{call} failed with {name} ({code}): {text}")]
    Driver { call: &'static str, code: i32, name: String, text: String },
    /// NVRTC refused the source; the log is the compiler's.
    #[error("{log}")]
    Compile { log: String },
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The host has no memory for what should leave the device.
    #[error("{0}")]
    HostMemory(String),
    /// A sticky fault has ended CUDA in this process; the text is the latched report.
    #[error("{0}")]
    DeviceLost(String),
    /// CUDA was initialised before fork.
    #[error("{0}")]
    Forked(String),
    #[error("{0}")]
    Launch(String),
    /// A kernel did something wrong while the CPU device ran it; the text is the report.
    #[error("{0}")]
    Kernel(String),
    #[error("{0}")]
    Graph(String),
    #[error("{0}")]
    Shape(String),
    #[error("{0}")]
    DType(String),
    /// The operation is not offered by this device.
    #[error("{0}")]
    Device(String),
    #[error("{0}")]
    Value(String),
    /// A host function submitted to a stream failed; carries what it said.
    #[error("{0}")]
    Host(String),
    /// A file cannot be read, or is shorter than what was asked of it.
    #[error("{0}")]
    File(String),
    /// A transfer was cancelled.
    #[error("{0}")]
    Cancelled(String),
    /// A scheduled task has ended or was cancelled; its work is refused.
    #[error("{0}")]
    TaskEnded(String),
    /// The runtime is shutting down.
    #[error("the runtime is shutting down")]
    ShuttingDown,
}

impl Error {
    /// A code after which CUDA cannot be used in this process any more.
    pub fn is_sticky(&self) -> bool {
        matches!(self, Error::Driver { code, .. } if crate::cuda::status::is_sticky(*code))
    }

    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory(_)) || matches!(self, Error::Driver { code: 2, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_like_a_person_writes_them() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(4096), "4.0 KiB");
        assert_eq!(human(3 << 29), "1.5 GiB");
    }

    #[test]
    fn out_of_memory_names_the_quota_or_the_device() {
        let mut oom = OutOfMemory { requested: 1 << 20, free: 5, total: 10, ..Default::default() };
        assert!(oom.to_string().contains("5 B free of 10 B"));
        let small =
            OutOfMemory { requested: 32, free: 1 << 20, total: 1 << 20, granule: 2 << 20, ..Default::default() };
        let text = small.to_string();
        let what = "requested 32 B, which takes 2.0 MiB (the device gives pages of 2.0 MiB), 1.0 MiB free of 1.0 MiB";
        assert!(text.contains(what), "{text}");
        assert!(!OutOfMemory { free: 0, ..small }.to_string().contains("pages"));
        oom.quota = Some(("a".into(), 1, 2));
        oom.holders.push((2048, "float32 (512,)".into()));
        let text = oom.to_string();
        assert!(text.contains("pool 'a' uses 1 B of its quota of 2 B"), "{text}");
        assert!(text.contains("2.0 KiB  float32 (512,)"), "{text}");
    }
}
