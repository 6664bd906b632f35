//! Rings in memory that two sides see: what goes in comes out, whole and in order.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;

use proptest::prelude::*;
use pygpukit_core::ring::mapped::{BulkInlet, BulkOutlet, HEADER, Header, Inlet, Outlet, Rows, Slots, Word};

fn headers() -> impl Strategy<Value = Header> {
    let small = (any::<u32>(), any::<u16>(), any::<u8>(), any::<u8>());
    let large = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>());
    (small, large).prop_map(
        |((kind, flags, priority, reason), (id, correlation, deadline, source, destination, stamp))| Header {
            kind,
            flags,
            priority,
            reason,
            id,
            correlation,
            deadline,
            source,
            destination,
            bytes: 0,
            stamp,
        },
    )
}

fn messages(room: usize) -> impl Strategy<Value = Vec<(Header, Vec<u8>)>> {
    proptest::collection::vec((headers(), proptest::collection::vec(any::<u8>(), 0..=room)), 0..40)
}

/// Words that both sides see.
fn memory(words: usize) -> Vec<AtomicU64> {
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

fn word(of: &AtomicU64) -> Word {
    // SAFETY: the tests keep the memory longer.
    unsafe { Word::new(std::ptr::from_ref(of) as usize) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn tagged_messages_come_out_as_they_went_in(
        messages in messages(80),
        count in 0u32..4,
        turns in proptest::collection::vec((1u64..6, any::<bool>()), 1..60),
    ) {
        let (count, words) = (1u64 << count, 32);
        let cells = memory(1 + count as usize * words);
        // SAFETY: there are as many cells behind the first.
        let slots = unsafe { Slots::new(std::ptr::from_ref(&cells[1]) as usize, count, words) };
        let (inlet, outlet) = (Inlet::new(word(&cells[0]), slots), Outlet::new(word(&cells[0]), slots));
        let (mut sent, mut inside, mut came) = (0, 0, VecDeque::new());
        for (wanted, reads) in turns.into_iter().chain(std::iter::repeat_n((5, true), 60)) {
            let wanted = wanted.min((messages.len() - sent) as u64);
            let pushed = inlet.push(wanted, &|index| {
                let (header, payload) = &messages[sent + index as usize];
                (*header, payload)
            });
            prop_assert_eq!(pushed, wanted.min(count - inside));
            (sent, inside) = (sent + pushed as usize, inside + pushed);
            if reads {
                prop_assert_eq!(outlet.drain(|message| came.push_back(message)), inside);
                inside = 0;
            }
        }
        prop_assert_eq!((sent, came.len()), (messages.len(), messages.len()));
        for ((header, payload), message) in messages.iter().zip(came) {
            let bytes = payload.len().next_multiple_of(4);
            prop_assert_eq!(message.header, Header { bytes: bytes as u32, ..*header });
            prop_assert_eq!(&message.payload[..payload.len()], &payload[..]);
            prop_assert!(message.payload[payload.len()..].iter().all(|byte| *byte == 0) && message.payload.len() == bytes);
        }
    }

    #[test]
    fn plain_messages_come_out_as_they_went_in(messages in messages(64), parts in proptest::collection::vec(1u64..20, 1..40)) {
        let (count, stride) = (8, HEADER + 64);
        let words = memory(2);
        let mut bytes = vec![0u128; count as usize * stride / 16];
        // SAFETY: there are as many bytes, and 16 is their alignment.
        let rows = unsafe { Rows::new(bytes.as_mut_ptr() as usize, count, stride) };
        let inlet = BulkInlet::new(word(&words[0]), word(&words[1]), rows);
        let outlet = BulkOutlet::new(word(&words[0]), word(&words[1]), rows);
        let (mut sent, mut came) = (0, Vec::new());
        for part in parts.into_iter().chain(std::iter::repeat_n(8, 40)) {
            let part = part.min((messages.len() - sent) as u64);
            sent += inlet.push(part, |index| (messages[sent + index as usize].0, messages[sent + index as usize].1.as_slice())) as usize;
            if let Some(mut reader) = outlet.try_read() {
                while reader.next(|header, payload| came.push((header, payload.to_vec()))).is_some() {}
            }
        }
        let expected: Vec<_> =
            messages.into_iter().map(|(header, bytes)| (Header { bytes: bytes.len() as u32, ..header }, bytes)).collect();
        prop_assert_eq!(came, expected);
    }
}

#[test]
fn a_ring_that_was_closed_is_not_looked_at() {
    let (count, words) = (4u64, 32);
    let cells = memory(1 + count as usize * words);
    // SAFETY: there are as many cells behind the first.
    let slots = unsafe { Slots::new(std::ptr::from_ref(&cells[1]) as usize, count, words) };
    let (inlet, outlet) = (Inlet::new(word(&cells[0]), slots), Outlet::new(word(&cells[0]), slots));
    let push = || inlet.push(1, &|_| (Header { id: 5, ..Header::default() }, b"four"));
    assert_eq!(push(), 1);
    assert!(!outlet.close(), "there is a message in it");
    assert_eq!(outlet.drain(drop), 1);
    assert!(outlet.close() && outlet.close());
    // The memory is another's now.
    assert_eq!(push(), 1);
    assert_eq!(outlet.drain(drop), 0);

    let (cells, stride) = (memory(2), HEADER + 16);
    let mut bytes = vec![0u128; count as usize * stride / 16];
    // SAFETY: that many rows, aligned.
    let rows = unsafe { Rows::new(bytes.as_mut_ptr() as usize, count, stride) };
    let inlet = BulkInlet::new(word(&cells[0]), word(&cells[1]), rows);
    let outlet = BulkOutlet::new(word(&cells[0]), word(&cells[1]), rows);
    let push = || inlet.push(1, |_| (Header::default(), b"four"));
    assert_eq!(push(), 1);
    assert!(!outlet.close(), "there is a message in it");
    assert!(outlet.try_read().unwrap().next(|_, payload| assert_eq!(payload, b"four")).is_some());
    assert!(outlet.close() && outlet.close());
    assert_eq!(push(), 1);
    assert!(outlet.try_read().is_none());
}
