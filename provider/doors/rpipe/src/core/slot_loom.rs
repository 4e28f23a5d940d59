//! A message under loom: what the reader finds behind a raised flag is that message, in the slot and in its
//! block.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::core::loom_words::{LoomWords, Twin};

fn notice(number: u64) -> Notice {
    Notice {
        granule: number as u32,
        generation: number as u16,
        is_inline: true,
        handler: 5,
        len: 100 + number as u32,
        granules: 2,
    }
}

/// A message in the slot, and one whose bytes are in the heap (`block`).
fn message(twin: Twin) {
    loom::model(move || {
        let shared = Arc::new((LoomWords::new(8, twin), UnsafeCell::new(0u64)));
        let writer = shared.clone();
        let writing = thread::spawn(move || {
            writer.1.with_mut(|block| {
                // SAFETY: loom finds an access at the same time.
                unsafe { *block = 7 }
            });
            publish(&writer.0, 0, notice(1), [42].into_iter(), 1);
        });
        if is_raised(&shared.0, 0, 1) {
            assert_eq!(
                (read(&shared.0, 0), word(&shared.0, 0, 0)),
                (notice(1), 42),
                "another message's notice"
            );
            // SAFETY: as above.
            assert_eq!(shared.1.with(|block| unsafe { *block }), 7);
        }
        writing.join().unwrap();
    });
}

#[test]
fn behind_a_flag_is_its_message() {
    message(Twin::Sound);
}

#[test]
#[should_panic]
fn twin_whose_flag_is_not_behind_its_message() {
    message(Twin::Release);
}

#[test]
#[should_panic]
fn twin_that_looks_before_the_flag() {
    message(Twin::Acquire);
}
