//! The pool of page-locked memory.

use proptest::prelude::*;

use super::*;
use crate::command::HostFn;

/// Something on a stream that is done when the stream is polled, and its number.
fn queued(ctx: &ExecCtx) -> u64 {
    let nothing: HostFn = Arc::new(|| Ok(()));
    submit(ctx, Command { work: Work::Host(nothing), uses: smallvec![], cost_key: 0 }).unwrap();
    ctx.stream.seq()
}

#[test]
fn a_block_comes_back_and_serves_again() {
    let pool = open(None).pinned.clone();
    let first = pool.take(1000).unwrap();
    assert_eq!(first.len(), 1024);
    let address = first.ptr();
    // SAFETY: the block is ours.
    unsafe { address.write_bytes(7, 1000) };
    drop(first);
    assert_eq!(pool.take(900).unwrap().ptr(), address);
    let stats = pool.stats();
    assert_eq!((stats.used, stats.peak, stats.hits, stats.misses), (0, 1024, 1, 1));
    assert_eq!(stats.cached, 2 * MIB);
    assert_eq!(pool.trim().unwrap(), 2 * MIB);
    assert_eq!(pool.stats().cached, 0);
    assert!(!pool.contains(address as usize, 1));
}

#[test]
fn a_block_in_use_by_a_stream_waits_for_it() {
    let state = open(Some(3));
    let ctx = ExecCtx::default_for(state);
    let pool = &state.pinned;
    let block = pool.take(3 * MIB).unwrap();
    let address = block.ptr();
    block.note_use(&ctx.stream, queued(&ctx));
    drop(block);
    assert_eq!(pool.waiting().unwrap(), 4 * MIB);
    assert_eq!(pool.trim().unwrap(), 0, "memory in use stays");
    let other = pool.take(3 * MIB).unwrap();
    assert_ne!(other.ptr(), address);
    ctx.stream.synchronize(&mut never).unwrap();
    assert_eq!(pool.take(3 * MIB).unwrap().ptr(), address);
    drop(other);
    assert_eq!(pool.waiting().unwrap(), 0);
    assert_eq!(pool.trim().unwrap(), 8 * MIB);
}

#[test]
fn the_limit_holds_and_cached_memory_gives_way() {
    let pool = open(None).pinned.clone();
    pool.set_limit(8 * MIB);
    let first = pool.take(6 * MIB).unwrap();
    let error = pool.take(4 * MIB).unwrap_err();
    assert!(error.is_out_of_memory());
    assert!(error.to_string().contains("PYGPUKIT_PINNED_LIMIT"), "{error}");
    drop(first);
    let second = pool.take(4 * MIB).unwrap();
    assert_eq!(pool.stats().cached, 0, "the block that did not fit went");
    drop(second);
    pool.trim().unwrap();
    // A slab does not fit, one block does.
    pool.set_limit(4096);
    let small = pool.take(300).unwrap();
    assert_eq!(small.len(), 512);
    assert!(pool.take(8192).is_err());
    pool.set_limit(0);
    assert!(pool.take(MIB).is_err());
    assert!(pool.take(usize::MAX).is_err());
}

#[test]
fn addresses_inside_blocks_are_known() {
    let pool = open(None).pinned.clone();
    let block = pool.take(2 * MIB).unwrap();
    let start = block.ptr() as usize;
    assert!(pool.contains(start, 2 * MIB));
    assert!(pool.contains(start + 5, 100));
    assert!(!pool.contains(start, 2 * MIB + 1));
    assert!(!pool.contains(start + 5, usize::MAX));
    assert!(!pool.contains(start - 1, 1));
}

#[test]
fn threads_never_share_a_block() {
    let pool = open(None).pinned.clone();
    std::thread::scope(|scope| {
        for thread in 0..6u8 {
            let pool = &pool;
            scope.spawn(move || {
                for i in 0..200 {
                    let block = pool.take(1 + (i * 37) % 5000).unwrap();
                    // SAFETY: the block is ours; another thread that had it too would change it.
                    unsafe { block.ptr().write_bytes(thread, block.len()) };
                    std::thread::yield_now();
                    // SAFETY: as above.
                    let seen = unsafe { std::slice::from_raw_parts(block.ptr(), block.len()) };
                    assert!(seen.iter().all(|b| *b == thread));
                }
            });
        }
    });
    assert_eq!(pool.stats().used, 0);
    pool.trim().unwrap();
    assert_eq!(pool.stats().cached, 0, "nothing is lost");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Takes, drops, uses and trims in any order: blocks do not overlap, the account is right, and all comes back.
    #[test]
    fn the_account_is_right(seed: u64, actions in prop::collection::vec((0u8..5, 1usize..3 * MIB), 1..60)) {
        let state = open(Some(seed));
        let ctx = ExecCtx::default_for(state);
        let pool = &state.pinned;
        pool.set_limit(32 * MIB);
        let mut held: Vec<PinnedBlock> = Vec::new();
        for (action, size) in actions {
            match action {
                0 | 1 => match pool.take(size) {
                    Ok(block) => {
                        let (start, end) = (block.ptr() as usize, block.ptr() as usize + block.len());
                        prop_assert!(block.len() >= size);
                        for other in &held {
                            let (a, b) = (other.ptr() as usize, other.ptr() as usize + other.len());
                            prop_assert!(end <= a || b <= start);
                        }
                        held.push(block);
                    }
                    Err(error) => prop_assert!(error.is_out_of_memory()),
                },
                2 if !held.is_empty() => drop(held.swap_remove(size % held.len())),
                3 if !held.is_empty() => {
                    let block = held.swap_remove(size % held.len());
                    block.note_use(&ctx.stream, queued(&ctx));
                }
                _ => {
                    pool.trim().unwrap();
                }
            }
            let stats = pool.stats();
            prop_assert_eq!(stats.used, held.iter().map(PinnedBlock::len).sum::<usize>());
            prop_assert!(stats.used + stats.cached <= stats.limit);
        }
        held.clear();
        ctx.stream.synchronize(&mut never).unwrap();
        pool.trim().unwrap();
        prop_assert_eq!((pool.stats().used, pool.stats().cached), (0, 0));
    }
}
