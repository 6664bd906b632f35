//! Driver status codes: the few we act on, which of them end the context, and what to tell the reader.

/// What a driver call returned. A plain integer, because a newer driver may return a code we do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(pub i32);

impl Status {
    pub const SUCCESS: Status = Status(0);
    pub const INVALID_VALUE: Status = Status(1);
    pub const OUT_OF_MEMORY: Status = Status(2);
    pub const STUB_LIBRARY: Status = Status(34);
    pub const NO_DEVICE: Status = Status(100);
    pub const INVALID_CONTEXT: Status = Status(201);
    pub const NOT_FOUND: Status = Status(500);
    pub const NOT_READY: Status = Status(600);
    pub const NOT_PERMITTED: Status = Status(800);
    pub const NOT_SUPPORTED: Status = Status(801);
}

/// Does this code end the context, so that every later call on it fails too and the process must be restarted?
pub fn is_sticky(code: i32) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 | 911)
}

/// What to do about a code, where there is something to say beyond the driver's own text.
pub(crate) fn advice(code: i32) -> Option<&'static str> {
    Some(match code {
        1 => "An argument was refused: check sizes, alignment and that the memory is still alive.",
        2 => "Free arrays that are no longer needed, use smaller batches, or stop other programs on this GPU.",
        3 | 4 => {
            "CUDA does not survive fork() and is gone at process exit: start workers with the 'spawn' method and use \
             the GPU only while the interpreter runs."
        }
        46 => "Another process holds the GPU in exclusive mode: stop it, or set the compute mode to default.",
        100 => "Check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that the container was started with the GPU.",
        101 => "The device number does not exist: numbers start at 0 and follow CUDA_VISIBLE_DEVICES.",
        200 => "The image is neither a cubin nor PTX the driver can read: compile it again for this GPU.",
        201 => "No CUDA context is current on this thread, or it was destroyed by another library.",
        209 => "The cubin was built for another GPU: compile it for this GPU's exact architecture.",
        214 | 220 | 226 => {
            "The hardware reported an error: restart the process, and check `nvidia-smi -q` if it returns."
        }
        218 => "The PTX does not assemble: see the log for the line.",
        221 => "The driver's PTX compiler library is missing: reinstall the driver, or compile to cubin.",
        222 => "The PTX is newer than the driver: compile to cubin, use an older NVRTC, or update the driver.",
        500 => "Check the spelling, and that the kernel is declared extern \"C\" or asked for by its lowered name.",
        700 => {
            "A kernel touched memory outside its arrays. CUDA is over for this process: restart it. Run with \
             PYGPUKIT_SYNC=1 to find the launch."
        }
        701 => "The launch needs more registers or shared memory than a block may have: use a smaller block.",
        702 => "A kernel ran longer than the display watchdog allows. Restart the process and split the work.",
        709 => "The CUDA context was destroyed by another library in this process: restart it.",
        710 => "A device-side assert failed; its text is on standard output. Restart the process.",
        716 => "A kernel read or wrote through a misaligned pointer. Restart the process; see PYGPUKIT_SYNC=1.",
        714 | 715 | 717 | 718 | 719 | 721 => {
            "A kernel crashed. CUDA is over for this process: restart it. Run with PYGPUKIT_SYNC=1 to find the launch."
        }
        720 => "A cooperative launch must fit on the GPU at once: use fewer or smaller blocks.",
        801 => "This driver or GPU does not offer the operation: update the driver.",
        802 => "The GPU or its fabric manager is not ready yet: wait for it, or start nvidia-fabricmanager.",
        803 => "The driver's user library and kernel module differ in version: reboot, or reinstall the driver.",
        804 => "The CUDA compatibility package does not support this GPU: remove it from the library path.",
        805..=809 => "The MPS server refused or is gone: restart it, or unset CUDA_MPS_PIPE_DIRECTORY.",
        810 => "MPS ended this client after a fault: restart the process.",
        911 => "A device outside the GPU failed while CUDA used it: restart the process.",
        912 => "The cluster shape does not divide the grid or is too large for this GPU.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codes_that_end_the_context_are_sticky() {
        for code in [700, 702, 709, 710, 714, 715, 716, 717, 718, 719] {
            assert!(is_sticky(code), "{code}");
        }
        for code in [0, 1, 2, 100, 200, 201, 209, 218, 222, 500, 600, 701, 704, 705, 708, 711, 712, 713, 720, 801, 999]
        {
            assert!(!is_sticky(code), "{code}");
        }
    }

    #[test]
    fn every_sticky_code_says_that_the_process_must_restart() {
        for code in (0..1000).filter(|c| is_sticky(*c)) {
            let text = advice(code).unwrap_or_default();
            assert!(text.to_lowercase().contains("restart"), "{code}: {text}");
        }
    }
}
