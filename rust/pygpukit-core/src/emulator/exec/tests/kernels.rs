//! CUDA kernels that wait for lanes, warps and blocks, as NVRTC compiles them.

use crate::emulator::Options;
use crate::emulator::testing::{Aligned, Case};
use crate::random::Random;

const TEXTS: [&str; 2] = [include_str!("cuda/sync.sm_80.ptx"), include_str!("cuda/sync.sm_90a.ptx")];

/// Run a kernel of both texts, in the usual order and in random ones; `check` sees the buffers afterwards.
fn launch(kernel: &str, (blocks, threads): (u32, u32), buffers: &[&[u32]], words: &[u64], check: impl Fn(&[Vec<u32>])) {
    for text in TEXTS {
        for (fuzz, workers) in [(None, 1), (None, 4), (Some(7), 1), (Some(8), 1)] {
            let mut memory: Vec<Aligned> = buffers.iter().map(|buffer| Aligned::new(buffer)).collect();
            let mut args: Vec<u64> = memory.iter_mut().map(Aligned::address).collect();
            args.extend(words);
            let case = Case::new(text, blocks, threads);
            let options = Options { fuzz, workers, ..case.options.clone() };
            Case { kernel, options, ..case }.run(&args).unwrap();
            let results = memory.iter().zip(buffers).map(|(memory, buffer)| {
                let mut values = vec![0; buffer.len()];
                memory.copy_to(&mut values);
                values
            });
            check(&results.collect::<Vec<_>>());
        }
    }
}

fn numbers(count: usize) -> Vec<u32> {
    let mut random = Random::new(count as u64);
    (0..count).map(|_| random.next() as u32).collect()
}

#[test]
fn a_lock_between_lanes_and_blocks() {
    launch("lock", (3, 64), &[&[0], &[0]], &[2], |out| assert_eq!(out, [[0], [3 * 64 * 2]]));
}

#[test]
fn lanes_that_wait_for_lanes() {
    launch("spin", (1, 32), &[&[0], &[0; 32]], &[100], |out| {
        assert!(out[1][..16].iter().all(|value| [1, 2].contains(value)), "{:?}", out[1]);
        assert_eq!(out[1][16..], [4950; 16]);
    });
}

#[test]
fn a_sum_over_the_grid() {
    let x: Vec<u32> = (0..10_000).map(|k| ((k % 100) as f32).to_bits()).collect();
    launch("total", (7, 256), &[&x, &[0; 7], &[0], &[0]], &[10_000], |out| {
        assert_eq!(f32::from_bits(out[2][0]), 495_000.0);
    });
}

#[test]
fn a_scan_that_looks_back() {
    let x = numbers(40 * 128);
    let mut sum = 0u32;
    let want: Vec<u32> = x
        .iter()
        .map(|value| {
            sum = sum.wrapping_add(*value);
            sum
        })
        .collect();
    launch("look_back", (40, 128), &[&x, &[0; 80], &[0]], &[], |out| assert_eq!(out[0], want));
}

#[test]
fn a_histogram() {
    let x = numbers(5000);
    let mut want = [0; 64];
    x.iter().for_each(|value| want[*value as usize % 64] += 1);
    launch("histogram", (5, 128), &[&x, &[0; 64]], &[5000], |out| assert_eq!(out[1], want));
}

#[test]
fn ranks_by_key() {
    let keys = numbers(1024);
    launch("aggregate", (8, 128), &[&keys, &[0; 8], &[0; 1024]], &[], |out| {
        for key in 0..8 {
            let mut ranks: Vec<u32> = (0..1024).filter(|&k| keys[k] % 8 == key).map(|k| out[2][k]).collect();
            assert_eq!(out[1][key as usize] as usize, ranks.len());
            ranks.sort_unstable();
            assert!(ranks.iter().copied().eq(0..ranks.len() as u32), "every rank once");
        }
    });
}

#[test]
fn barriers_that_count() {
    launch("counting", (2, 192), &[&[0; 192]], &[], |out| {
        let (mut values, mut rounds): (Vec<u32>, _) = ((0..192).collect(), 0);
        while values.iter().any(|value| *value > 3) {
            values.iter_mut().for_each(|value| *value /= 2);
            rounds += 1;
        }
        let count = values.iter().filter(|value| **value == 3).count() as u32;
        assert_eq!(out[0], [rounds * 1000 + count + 500; 192]);
    });
}

#[test]
fn half_warps_on_their_own() {
    launch("halves", (1, 32), &[&[0; 32]], &[], |out| {
        for lane in 0..32u32 {
            let (rounds, highest) = if lane < 16 { (4, 15) } else { (11, 31) };
            assert_eq!(out[0][lane as usize], (0..rounds).map(|k| (lane ^ 1) + k + highest).sum::<u32>());
        }
    });
}

#[test]
fn a_divergent_barrier_names_its_line() {
    for text in TEXTS {
        let mut out = Aligned::new(&[0u32; 64]);
        let error = Case { kernel: "divergent", ..Case::new(text, 1, 64) }.run(&[out.address()]).unwrap_err();
        assert!(error.contains("kernel 'divergent': divergent barrier: 16 of 32 lanes"), "{error}");
        assert!(error.contains("sync.cu:12"), "{error}");
        assert!(error.contains("bar.sync"), "{error}");
    }
}
