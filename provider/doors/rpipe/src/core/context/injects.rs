//! The longest messages that paths copy when they are written, as measured.

use std::collections::HashMap;

use crate::Promise;

#[derive(Debug, Default)]
pub(crate) struct Injects {
    /// By path and its reason: the length, and why it is that.
    by_path: HashMap<(String, String), (usize, String)>,
}

impl Injects {
    pub(crate) fn get(&self, promise: &Promise) -> Option<(usize, String)> {
        self.by_path.get(&(promise.path.clone(), promise.why.clone())).cloned()
    }

    pub(crate) fn insert(&mut self, promise: &Promise, most: usize, why: &str) {
        self.by_path.insert((promise.path.clone(), promise.why.clone()), (most, why.to_owned()));
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn len(&self) -> usize {
        self.by_path.len()
    }
}
