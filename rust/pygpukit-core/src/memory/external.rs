//! Memory for other libraries: blocks of our pools that are known there by their address alone.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::device::{DevPtr, RawStream};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::memory::Storage;
use crate::residency;
use crate::runtime::{self, DeviceState};
use crate::stream::{Stream, wait_until};

static OUTSIDE: LazyLock<Mutex<HashMap<DevPtr, Arc<Storage>>>> = LazyLock::new(Mutex::default);

/// Memory of the context's pool for work that somebody else submits to a stream of the device. It stays where it is
/// until `give_back`.
pub fn lend(ctx: &ExecCtx, bytes: usize, stream: RawStream) -> Result<DevPtr> {
    ctx.state.check()?;
    if bytes == 0 {
        return Err(Error::Value("memory of 0 bytes has no address to be known by".to_string()));
    }
    let ours = known(ctx.state, stream);
    let home = ours.as_ref().unwrap_or(&ctx.stream);
    let storage = ctx.pool.allocate_with_check(bytes, home, &mut runtime::wait_check)?;
    residency::export(&ctx.on_stream(home), &storage, true)?;
    if ours.is_none() {
        // Its stream cannot be told to wait for what used the memory before.
        home.wait_passed(storage.born(), &mut runtime::wait_check)?;
    }
    storage.set_label("memory of another library");
    let address = storage.ptr();
    OUTSIDE.lock().insert(address, storage);
    Ok(address)
}

/// Take memory back that was lent for work on this stream, when that has ended. False: it was not lent.
pub fn give_back(address: DevPtr, stream: RawStream) -> Result<bool> {
    let Some(storage) = OUTSIDE.lock().remove(&address) else { return Ok(false) };
    if runtime::is_exiting() {
        // The device may be gone.
        std::mem::forget(storage);
        return Ok(true);
    }
    let home = storage.home().clone();
    if home.has_handle(stream) {
        // What was submitted past us has a number from now on, which others of the memory wait for.
        home.note_wait();
        return Ok(true);
    }
    let ended = wait_until(&mut runtime::wait_check, || home.device().stream_query(stream));
    if ended.is_err() {
        // Whether it is still in use cannot be known.
        std::mem::forget(storage);
    }
    ended.map(|()| true)
}

fn known(state: &DeviceState, stream: RawStream) -> Option<Arc<Stream>> {
    state.streams().into_iter().find(|ours| ours.has_handle(stream))
}
