//! How the links of this backend are opened.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use below::{Below as _, BelowOptions};
use fabric_client::Library;
use link::{BoxedLink, Links, OpenOptions, Ports, TcpOptions};
use link_api::Link as _;
use ofi::{Beyond, Fabric, OfiLink};
use wire::session::JobKey;

use super::super::reach::Reach;
use crate::{Error, Settings};

/// Where libfabric is, if it is not the one that programs get.
const LIBRARY: &str = "STRAIT_RPIPE_LIBFABRIC";
/// A peer listens before it is known here. One that does not has left; for so long it is called again all the
/// same.
const LISTENS: Duration = Duration::from_millis(500);
/// For how long peers wait for one that has no descriptor for them: until it has, or ends.
const LACKING: Duration = Duration::from_secs(24 * 3600);

fn failed(e: std::io::Error) -> Error {
    Error::system("opening a link", &e)
}

/// The ports that FI_STRAIT_PORTS names, which holds for all that listens.
fn ports() -> Result<Ports, Error> {
    let text = std::env::var(settings::PORTS.variable()).unwrap_or_default();
    let reading = settings::PORTS.read(&text);
    match reading.complaint {
        Some(complaint) => Err(Error::Invalid(complaint)),
        None => Ok(reading.ports().map_or_else(Ports::default, |(first, last)| Ports::between(first, last))),
    }
}

/// Opens the links by which peers are reached so; the name of the provider below, if there is one.
pub(super) fn open(reach: &Reach, settings: &Settings) -> Result<(Links, String), Error> {
    let mut links = Links::open(OpenOptions {
        bind: Some(SocketAddr::new(link::primary_ip(false), 0)),
        eager: link::eager_size(),
        eager_in_a_row: link::eager_in_a_row(),
        eager_one_way: link::eager_one_way(),
        port: link::Port::Listens,
        ports: ports()?,
        connect_timeout: LISTENS,
        patience: LACKING,
        ..OpenOptions::default()
    })
    .map_err(failed)?;
    links.set_shm(matches!(reach, Reach::Memory | Reach::Frames));
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    let user = unsafe { libc::geteuid() }.to_string();
    let key = match &settings.key {
        Some(secret) => JobKey::from_secret(secret.as_bytes()),
        None => JobKey::from_job(&["rpipe", &user]),
    };
    let (secret, linger) = (settings.key.is_some(), settings.linger);
    let tcp = TcpOptions { secret, linger, connect_timeout: LISTENS, ..TcpOptions::new(key) };
    let mut carrier = String::new();
    match reach {
        Reach::Provider(name) => {
            let below = provider(name, &links)?;
            below.about().name.clone_into(&mut carrier);
            let options = BelowOptions { fallback: false, linger, ..BelowOptions::new(tcp.key.clone()) };
            let over = |tcp| Ok(Box::new(OfiLink::new(tcp, Ok(below), options)?) as BoxedLink);
            links.add_over_tcp(tcp, over)
        }
        _ => links.add_tcp(tcp),
    }
    .map_err(failed)?;
    Ok((links, carrier))
}

/// Opens this provider of libfabric, which is loaded for it; without a name, the first that can be opened.
fn provider(name: &str, links: &Links) -> Result<Fabric, Error> {
    let unsupported = |why| Error::Unsupported(why);
    let path = std::env::var_os(LIBRARY).filter(|path| !path.is_empty()).map(PathBuf::from);
    let library = Library::load(path.as_deref()).map_err(|e| unsupported(e.to_string()))?;
    let names = match name {
        "" => [&ofi::FABRICS[..], &ofi::SOFT].concat(),
        name => vec![name],
    };
    match ofi::open(library.core(), &names, links.addr().ip(), Beyond::default()) {
        Ok((below, _)) => Ok(below),
        Err(refused) => Err(unsupported(format!(
            "no provider of libfabric that STRAIT_RPIPE_BACKEND names can be opened: {}",
            refused.join("; ")
        ))),
    }
}
