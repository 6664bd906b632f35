//! What tests use to steer and watch the fake driver, from Rust and from C.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};

use crate::api::text;
use crate::config::base_name;
use crate::green::GreenContext;
use crate::kernel::Launch;
use crate::state::{forget, with_state};

/// Change a setting; the name with or without its `FAKECUDA_` prefix.
pub fn configure(name: &str, value: &str) -> Result<(), String> {
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("FAKECUDA_").unwrap_or(&name).to_string();
    with_state(|state| {
        let counts = state.counts.clone();
        state.config.set(&name, value, &counts)?;
        // Queued work is asked no more often than work of now.
        let lazy = state.config.lazy;
        state.streams.values_mut().for_each(|stream| stream.be_lazy_at_most(lazy));
        Ok(())
    })
}

/// How often a call was made so far.
pub fn counter(call: &str) -> u64 {
    with_state(|state| state.counts.get(base_name(call)).copied().unwrap_or(0))
}

/// The launches that have run, oldest first.
pub fn launches() -> Vec<Launch> {
    with_state(|state| state.launches.clone())
}

/// The green contexts alive, by their handles.
pub fn green_contexts() -> HashMap<usize, GreenContext> {
    with_state(|state| state.green.alive.clone())
}

/// The context of each node of an executable graph; 0 for nodes that do nothing.
pub fn graph_contexts(exec: usize) -> Vec<usize> {
    with_state(|state| state.execs.get(&exec).map_or_else(Vec::new, |nodes| nodes.iter().map(|n| n.context).collect()))
}

/// Back to the beginning: handles, memory, counters and settings; the environment is read again.
pub fn reset() {
    forget();
}

/// Returns 0, or 1 when the name or value is not understood.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_configure(name: *const c_char, value: *const c_char) -> c_int {
    match (text(name), text(value)) {
        (Ok(name), Ok(value)) => match configure(&name, &value) {
            Ok(()) => 0,
            Err(message) => {
                eprintln!("{message}");
                1
            }
        },
        _ => 1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_counter(call: *const c_char) -> u64 {
    text(call).map_or(0, |call| counter(&call))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_reset() {
    reset();
}

/// Write the launch log as text, one line each, cut to `capacity` bytes; returns the bytes it needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fakecuda_launches(buffer: *mut c_char, capacity: usize) -> usize {
    let lines: String = launches().iter().map(|launch| format!("{launch}\n")).collect();
    let count = lines.len().min(capacity);
    if !buffer.is_null() {
        // SAFETY: the caller's buffer holds `capacity` bytes.
        unsafe { std::ptr::copy_nonoverlapping(lines.as_ptr().cast(), buffer, count) };
    }
    lines.len()
}
