//! What the host machine is: name and memory.

/// The processor's model name.
pub(crate) fn name() -> String {
    std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            line.split_once(':').map(|(_, name)| name.trim().to_string())
        })
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "CPU".to_string())
}

/// Bytes of physical memory.
#[cfg(unix)]
pub fn memory() -> usize {
    // SAFETY: sysconf reads no memory of ours.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (usize::try_from(pages), usize::try_from(page)) {
        (Ok(pages), Ok(page)) if pages > 0 => pages.saturating_mul(page),
        _ => FALLBACK,
    }
}

#[cfg(not(unix))]
pub fn memory() -> usize {
    FALLBACK
}

/// Where the system does not say.
const FALLBACK: usize = 8 << 30;
