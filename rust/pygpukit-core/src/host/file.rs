//! A file as the source of an upload: read in pieces, past the page cache where that helps.
//!
//! Pieces are read with `pread`, never through a mapping: a file that shrinks meanwhile is an error, not a signal. Pieces
//! that the page cache holds are read from it; others are read directly, when the file system offers it, because that
//! spares a copy and leaves the cache to others.

use std::fs::File;

use crate::error::{Error, Result};

/// Alignment of direct reads: of the offset, the length and the memory.
#[cfg(target_os = "linux")]
const BLOCK: u64 = 4096;

pub struct FileSource {
    file: File,
    /// What errors call it.
    path: String,
    offset: u64,
    #[cfg(target_os = "linux")]
    direct: Option<Direct>,
}

impl FileSource {
    /// `bytes` from `offset` of an open file.
    pub fn new(file: File, path: &str, offset: u64, bytes: usize) -> Result<FileSource> {
        let length = file.metadata().map_err(|error| failed(path, &error))?.len();
        let end = offset.saturating_add(bytes as u64);
        if end > length {
            return Err(too_short(path, offset, bytes, length, ""));
        }
        Ok(FileSource {
            #[cfg(target_os = "linux")]
            direct: Direct::open(&file, offset, bytes as u64),
            file,
            path: path.to_string(),
            offset,
        })
    }

    /// Where the source starts in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Read `bytes` from `at` of the source into `buffer`; says where in the buffer they begin. The buffer has room for
    /// the blocks of the file around the bytes.
    pub(super) fn read(&self, at: usize, bytes: usize, buffer: &mut [u8]) -> Result<usize> {
        let start = self.offset + at as u64;
        #[cfg(target_os = "linux")]
        if let Some(direct) = &self.direct {
            let lead = (start % BLOCK) as usize;
            let whole = (lead + bytes).next_multiple_of(BLOCK as usize);
            let aligned = (buffer.as_ptr() as u64).is_multiple_of(BLOCK);
            if aligned
                && whole <= buffer.len()
                && !direct.is_cached(start, bytes)
                && read_all(&direct.file, start - lead as u64, lead + bytes, &mut buffer[..whole])
                    .is_ok_and(|read| read >= lead + bytes)
            {
                return Ok(lead);
            }
            // Refused, or the file is shorter now: reading it plainly tells which.
        }
        match read_all(&self.file, start, bytes, &mut buffer[..bytes]) {
            Ok(read) if read >= bytes => Ok(0),
            Ok(read) => {
                let length = self.file.metadata().map_or(start + read as u64, |meta| meta.len());
                Err(too_short(&self.path, start, bytes, length, " It became shorter while it was read."))
            }
            Err(error) => Err(failed(&self.path, &error)),
        }
    }
}

fn too_short(path: &str, offset: u64, bytes: usize, length: u64, more: &str) -> Error {
    Error::File(format!(
        "'{path}' is too short: {bytes} bytes from offset {offset} are wanted, but it has {length} bytes, so {} are \
         there.{more} Check offset, shape and dtype, and whether the file is complete",
        length.saturating_sub(offset)
    ))
}

fn failed(path: &str, error: &std::io::Error) -> Error {
    Error::File(format!("'{path}' cannot be read: {error}"))
}

/// Read until `wanted` bytes are there or the file ends.
#[cfg(unix)]
fn read_all(file: &File, offset: u64, wanted: usize, buffer: &mut [u8]) -> std::io::Result<usize> {
    use std::os::unix::fs::FileExt;
    let mut read = 0;
    while read < wanted {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(windows)]
fn read_all(file: &File, offset: u64, wanted: usize, buffer: &mut [u8]) -> std::io::Result<usize> {
    use std::os::windows::fs::FileExt;
    let mut read = 0;
    while read < wanted {
        match file.seek_read(&mut buffer[read..], offset + read as u64)? {
            0 => break,
            count => read += count,
        }
    }
    Ok(read)
}

/// The same file opened past the page cache, and a mapping that is only asked what the cache holds.
#[cfg(target_os = "linux")]
struct Direct {
    file: File,
    map: usize,
    map_bytes: usize,
    /// Offset in the file where the mapping starts.
    start: u64,
}

#[cfg(target_os = "linux")]
impl Direct {
    fn open(file: &File, offset: u64, bytes: u64) -> Option<Direct> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;
        if bytes == 0 {
            return None;
        }
        let direct = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .ok()?;
        let start = offset - offset % page();
        let map_bytes = usize::try_from(offset + bytes - start).ok()?;
        // SAFETY: a new mapping without access; nobody reads through it, so a shorter file cannot fault.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                map_bytes,
                libc::PROT_NONE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                libc::off_t::try_from(start).ok()?,
            )
        };
        (map != libc::MAP_FAILED).then_some(Direct { file: direct, map: map as usize, map_bytes, start })
    }

    /// Does the page cache hold most of these bytes?
    fn is_cached(&self, offset: u64, bytes: usize) -> bool {
        let page = page();
        let from = offset - offset % page;
        let count = (offset + bytes as u64 - from).div_ceil(page) as usize;
        let Some(address) = (from.checked_sub(self.start)).map(|at| self.map + at as usize) else { return false };
        let mut resident = vec![0u8; count];
        // SAFETY: the range lies in the mapping, and the kernel writes one byte for each of its pages.
        let status = unsafe { libc::mincore(address as *mut libc::c_void, bytes, resident.as_mut_ptr()) };
        status == 0 && resident.iter().filter(|flag| **flag & 1 != 0).count() * 2 > count
    }
}

#[cfg(target_os = "linux")]
impl Drop for Direct {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody uses it after this.
        unsafe { libc::munmap(self.map as *mut libc::c_void, self.map_bytes) };
    }
}

#[cfg(target_os = "linux")]
fn page() -> u64 {
    // SAFETY: sysconf reads no memory of ours.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}
