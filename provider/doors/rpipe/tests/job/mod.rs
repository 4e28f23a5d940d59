//! A process of a job whose processes meet by files.

use std::path::Path;
use std::sync::Arc;

use strait_rpipe::start::FileBootstrap;
use strait_rpipe::{Context, Rank, Settings, backends};

/// In a job of `size`. `way` says what leads to the others: `mapped`, memory that both map; `put`, memory
/// that is put to and got from; `frames`, frames of the engine.
pub fn join(rank: Rank, size: Rank, dir: &Path, way: &str) -> Arc<Context> {
    let backend = if way == "frames" { "strait:frames" } else { "strait" };
    let settings = Settings { map: way == "mapped", backend: backend.into(), ..Settings::default() };
    let backend = backends::open(&settings, rank).unwrap();
    let bootstrap = FileBootstrap::new(rank, size, dir).unwrap();
    Arc::new(Context::new(backend, Box::new(bootstrap), settings).unwrap())
}
