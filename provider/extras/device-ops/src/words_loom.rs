//! Words of ranks under loom, for the agreements of collectives.

use std::sync::atomic::Ordering;

use ipc::word::Wide;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

use crate::board::Words;

pub(crate) struct LoomWord(AtomicU64);

impl Wide for LoomWord {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, v: u64, order: Ordering) {
        self.0.store(v, order);
    }

    fn compare_exchange(&self, _: u64, _: u64) -> Result<(), u64> {
        unreachable!("words have one writer")
    }
}

#[derive(Clone)]
pub(crate) struct LoomWords(Arc<Vec<LoomWord>>);

impl LoomWords {
    pub(crate) fn new(ranks: usize) -> LoomWords {
        LoomWords(Arc::new((0..ranks).map(|_| LoomWord(AtomicU64::new(0))).collect()))
    }
}

impl Words for LoomWords {
    type Word = LoomWord;

    fn ranks(&self) -> usize {
        self.0.len()
    }

    fn word(&self, rank: usize) -> &LoomWord {
        &self.0[rank]
    }
}
