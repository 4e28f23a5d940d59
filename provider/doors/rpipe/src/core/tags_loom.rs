//! A block that goes back under loom: the writer stores into it after the reader has loaded from it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::core::loom_words::{LoomWords, Twin};

/// Two tags in a ring of one place: of two laps.
fn back(twin: Twin) {
    loom::model(move || {
        let shared = Arc::new((LoomWords::new(1, twin), UnsafeCell::new(7u64)));
        let reader = shared.clone();
        let reading = thread::spawn(move || {
            // SAFETY: loom finds an access at the same time.
            assert_eq!(reader.1.with(|block| unsafe { *block }), 7, "the next message's");
            publish(&reader.0, 0, &mut Cursor::new(1), Range { from: 3, len: 1 });
        });
        let mut cursor = Cursor::new(1);
        if let Some(range) = take(&shared.0, 0, &mut cursor) {
            assert_eq!(range, Range { from: 3, len: 1 });
            shared.1.with_mut(|block| {
                // SAFETY: as above.
                unsafe { *block = 8 }
            });
            assert_eq!(take(&shared.0, 0, &mut cursor), None, "a tag is taken twice");
        }
        reading.join().unwrap();
    });
}

#[test]
fn a_block_is_the_writers_again_once_its_tag_is_taken() {
    back(Twin::Sound);
}

#[test]
#[should_panic]
fn twin_whose_tag_is_not_behind_the_loads() {
    back(Twin::Release);
}

#[test]
#[should_panic]
fn twin_that_stores_before_the_tag() {
    back(Twin::Acquire);
}
