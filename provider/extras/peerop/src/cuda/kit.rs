//! What a device has, and the kernel that adds where its batches cannot.

use std::ffi::CStr;
use std::sync::Arc;

use hmem::cuda::memops::{Features, features};
use hmem::cuda::{Function, PerContext, Stream};

use super::lower::{Lowered, lower};
use crate::error::Error;
use crate::exec::check;
use crate::memory::Targets;
use crate::op::Op;
use crate::place::Caps;
use crate::replay::Means;

/// Adds to a word of 32 bits, at the scope of the system: by one thread. Devices since Pascal take it.
const ADD: &CStr = c".version 6.0
.target sm_60
.address_size 64

.visible .entry strait_peerop_add(.param .u64 at, .param .u64 value)
{
    .reg .b32 %r<1>;
    .reg .b64 %d<2>;
    ld.param.u64 %d0, [at];
    ld.param.u64 %d1, [value];
    cvt.u32.u64 %r0, %d1;
    membar.sys;
    red.sys.global.add.u32 [%d0+0], %r0;
    ret;
}
";

/// What makes an error of the driver's one of a call here.
pub(crate) fn driver(what: &'static str) -> impl FnOnce(hmem::cuda::Error) -> Error {
    move |e| Error::Driver { what, why: e.to_string(), errno: e.errno() }
}

/// What the executors have in common.
#[derive(Clone, Debug)]
pub(crate) struct Kit {
    targets: Arc<Targets>,
    features: Features,
    add: Option<Function>,
}

impl Kit {
    /// Of a stream's device. All that may wait for the device, or allocates there, is done here: executing a
    /// list asks nothing, and does not disturb a capture.
    pub(crate) fn new(stream: Stream, targets: Arc<Targets>) -> Result<Kit, Error> {
        let features = features(stream).map_err(driver("asking for the device's attributes"))?;
        if !features.batches {
            return Err(Error::NoMeans(
                "the driver has no memory operations of streams (CUDA 11.7): update it",
            ));
        }
        let add = if features.reduction { None } else { load(stream) };
        Ok(Kit { targets, features, add })
    }

    pub(crate) fn caps(&self) -> Caps {
        let f = self.features;
        let adds = f.reduction || self.add.is_some();
        [(f.wide, Caps::STORE_QWORD), (f.nor, Caps::POLL_NOR_DWORD), (adds, Caps::ADD_DWORD)]
            .into_iter()
            .filter(|(has, _)| !has)
            .fold(Caps::all(), |caps, (_, lacks)| caps.difference(lacks))
    }

    /// The steps of a list, checked.
    pub(crate) fn steps(&self, ops: &[Op]) -> Result<Vec<Lowered>, Error> {
        check(ops, self.caps())?;
        lower(ops, &self.targets, self.features)
    }

    /// The kernel that adds.
    pub(crate) fn add(&self) -> Result<Function, Error> {
        self.add.ok_or(Error::Lacks(Caps::ADD_DWORD))
    }
}

static LOADED: PerContext<Function> = PerContext::new();

/// The kernel for a stream's context; `None` if the driver does not take it.
fn load(stream: Stream) -> Option<Function> {
    let context = (stream.context(), stream.context_id().ok()?);
    LOADED.get(context, || stream.load(ADD, c"strait_peerop_add")).ok()
}

/// What a stream's device has for words of graphs ([`crate::replay::choose`]).
pub fn means(stream: Stream) -> Result<Means, Error> {
    let features = features(stream).map_err(driver("asking for the device's attributes"))?;
    let kernel = !features.reduction && load(stream).is_some();
    Ok(Means { memory_operations: features.batches, reduction: features.reduction, kernel })
}
