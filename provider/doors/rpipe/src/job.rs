//! A job with all tiers.

use crate::lend::Lends;
use crate::{Backend, Bootstrap, Context, Error, Settings};

impl Context {
    /// Opens: a backend, whose card is published.
    pub fn new(
        backend: Box<dyn Backend>,
        bootstrap: Box<dyn Bootstrap>,
        settings: Settings,
    ) -> Result<Context, Error> {
        Context::with_service(backend, bootstrap, settings, Box::new(Lends::default()))
    }
}
