//! The threading model and the progress models of a domain: fi_domain(3).

use libfabric_sys::*;

use super::refusal::{Refusal, refuse};

/// Of `fi_domain_attr`: what hints ask for, or an answer has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Models {
    pub threading: fi_threading,
    pub control_progress: fi_progress,
    pub data_progress: fi_progress,
}

impl Models {
    /// Refuses what this version of libfabric's headers does not name.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        if self.threading > FI_THREAD_ENDPOINT {
            return refuse("threading", self.threading, FI_THREAD_SAFE);
        }
        if self.data_progress > FI_PROGRESS_MANUAL {
            return refuse("data_progress", self.data_progress, FI_PROGRESS_AUTO);
        }
        if self.control_progress > FI_PROGRESS_CONTROL_UNIFIED {
            return refuse("control_progress", self.control_progress, FI_PROGRESS_CONTROL_UNIFIED);
        }
        Ok(())
    }

    /// The answer to these.
    pub(super) fn answer(&self) -> Models {
        let data_progress = match self.data_progress {
            FI_PROGRESS_AUTO => FI_PROGRESS_AUTO,
            _ => FI_PROGRESS_MANUAL,
        };
        Models {
            threading: match self.threading {
                FI_THREAD_UNSPEC => FI_THREAD_SAFE,
                asked => asked,
            },
            control_progress: match self.control_progress {
                FI_PROGRESS_UNSPEC => data_progress,
                asked => asked,
            },
            data_progress,
        }
    }
}
