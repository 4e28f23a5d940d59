//! Host memory's entry in the registry.

use crate::error::Error;
use crate::kind::Kind;
use crate::memory::{AdapterWrites, Allocate, Copies, Handles, Memory};

/// Host memory: what is of no other kind.
pub(crate) struct System;

impl Memory for System {
    fn kind(&self) -> Kind {
        Kind::System
    }

    fn find(&self) -> bool {
        true
    }

    fn describe(&self) -> Result<String, String> {
        Ok("ordinary memory".into())
    }

    fn acquire(&self, _addr: usize, _len: usize) -> bool {
        true
    }

    fn adapter_writes(&self, _addr: usize) -> AdapterWrites {
        AdapterWrites::Seen
    }
}

impl Handles for System {}

impl Copies for System {
    fn copy_now(&self, _dst: usize, _src: usize, _len: usize) -> Result<(), Error> {
        // `span` does that itself.
        Err(Error::UNSUPPORTED)
    }
}

impl Allocate for System {}
