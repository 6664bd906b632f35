//! NUMA: page-locked pages near the device that will read them.

/// Run `make`, which allocates host memory, so that its pages lie on `node`. Where the system refuses, they lie anywhere.
pub(super) fn near<R>(node: Option<u32>, make: impl FnOnce() -> R) -> R {
    match node {
        #[cfg(target_os = "linux")]
        Some(node) => {
            let before = policy::prefer(node);
            let made = make();
            policy::restore(before);
            made
        }
        _ => make(),
    }
}

/// The node a device is attached to; None on a machine with one node, or where the system does not say.
pub(super) fn node_of(pci_bus_id: &str) -> Option<u32> {
    if pci_bus_id.is_empty() || cfg!(not(target_os = "linux")) {
        return None;
    }
    let online = std::fs::read_to_string("/sys/devices/system/node/online").ok()?;
    let text = std::fs::read_to_string(format!("/sys/bus/pci/devices/{}/numa_node", pci_bus_id.to_lowercase())).ok()?;
    choose(&online, &text)
}

/// `online` is a list such as "0-1", `node` a number, -1 for unknown.
fn choose(online: &str, node: &str) -> Option<u32> {
    if !online.contains(['-', ',']) {
        return None;
    }
    node.trim().parse().ok()
}

#[cfg(target_os = "linux")]
mod policy {
    const PREFERRED: libc::c_long = 1;
    /// Bits of a node mask.
    const NODES: usize = 1024;
    type Mask = [u64; NODES / 64];

    /// Prefer a node for this thread's new pages; the policy before, or None when it was not changed.
    pub fn prefer(node: u32) -> Option<(libc::c_int, Mask)> {
        let mut before: (libc::c_int, Mask) = (0, [0; NODES / 64]);
        let mut mask: Mask = [0; NODES / 64];
        *mask.get_mut(node as usize / 64)? |= 1 << (node % 64);
        // SAFETY: the kernel reads and writes masks of the length it is told.
        unsafe {
            let kept = libc::syscall(libc::SYS_get_mempolicy, &mut before.0, before.1.as_mut_ptr(), NODES, 0usize, 0);
            if kept != 0 {
                return None;
            }
            let set = libc::syscall(libc::SYS_set_mempolicy, PREFERRED, mask.as_ptr(), NODES);
            (set == 0).then_some(before)
        }
    }

    pub fn restore(before: Option<(libc::c_int, Mask)>) {
        if let Some((mode, mask)) = before {
            let mask = if mask.iter().all(|word| *word == 0) { std::ptr::null() } else { mask.as_ptr() };
            // SAFETY: the kernel reads a mask of the length it is told, or none.
            unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::c_long::from(mode), mask, NODES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_counts_only_beside_others() {
        assert_eq!(choose("0\n", "0\n"), None);
        assert_eq!(choose("0-1\n", "1\n"), Some(1));
        assert_eq!(choose("0,2\n", "-1\n"), None);
        assert_eq!(node_of(""), None);
        assert_eq!(node_of("ffff:ff:1f.7"), None);
    }

    #[test]
    fn allocating_near_a_node_works_whether_or_not_it_is_there() {
        for node in [None, Some(0), Some(900), Some(5000)] {
            assert_eq!(near(node, || vec![1u8; 4096].len()), 4096);
        }
    }
}
