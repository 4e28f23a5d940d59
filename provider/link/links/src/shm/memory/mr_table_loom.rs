//! An entry of a published MR table under loom: its owner writes it, a peer reads. The twins lack an order.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::twin::{Twin, TwinWord};

struct Words([TwinWord; 3]);

impl Entry for Words {
    type Word = TwinWord;
    fn word(&self, at: usize) -> &TwinWord {
        &self.0[at]
    }
}

fn change(twin: Twin) {
    loom::model(move || {
        let entry = Arc::new(Words([(); 3].map(|()| TwinWord::new(twin))));
        let owner = entry.clone();
        let writer = thread::spawn(move || {
            write(&*owner, [1, 1]);
            write(&*owner, [2, 2]);
        });
        if let Some(([a, b], _)) = read(&*entry, 2) {
            assert_eq!(a, b, "an entry was torn");
        }
        writer.join().unwrap();
    });
}

#[test]
fn an_entry_is_read_whole() {
    change(Twin::Sound);
}

#[test]
#[should_panic(expected = "an entry was torn")]
fn twin_with_relaxed_stores_is_torn() {
    change(Twin::Release);
}

#[test]
#[should_panic(expected = "an entry was torn")]
fn twin_with_relaxed_loads_is_torn() {
    change(Twin::Acquire);
}
