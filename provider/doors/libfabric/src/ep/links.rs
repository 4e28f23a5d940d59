//! The links that an endpoint is opened with.

use std::sync::Arc;

use below::{Below, BelowLink};
use link::{Links, TcpOptions};
use link_api::{Link as _, Standing};
use ofi::Beyond;
use wire::Addr;

use crate::domain::Shared;
use crate::errno::Errno;
use crate::info::auth::AuthKey;
use crate::param::{self, Params};

/// Why an endpoint cannot have its links.
#[derive(Debug)]
pub(crate) struct NotOpened {
    link: &'static str,
    errno: Errno,
    why: String,
}

impl From<NotOpened> for Errno {
    fn from(e: NotOpened) -> Errno {
        e.errno
    }
}

/// An error of the system's, with this link; where there is no memory, with the limit as well.
fn with(link: &'static str) -> impl Fn(std::io::Error) -> NotOpened {
    move |e| {
        let why = match e.raw_os_error() {
            Some(libc::ENOMEM) => format!("{e}; {}", link::MemoryLimit(link::DEFAULT_RING)),
            _ => e.to_string(),
        };
        NotOpened { link, why, errno: e.into() }
    }
}

/// Opens the links of an endpoint of this name, which has this key in the place of the job's.
pub(super) fn open_link(bind: Addr, key: Option<&AuthKey>) -> Result<Links, NotOpened> {
    open_with(&param::get(), bind, key).inspect_err(|e| {
        // That a name which the application gives is taken is for it to find out.
        let is_ours = bind.port() == 0 || e.errno == Errno::NOMEM;
        let level = if is_ours { log::Level::Warn } else { log::Level::Info };
        log::log!(level, "{bind}: {} cannot be opened: {}", e.link, e.why);
    })
}

fn open_with(params: &Params, bind: Addr, key: Option<&AuthKey>) -> Result<Links, NotOpened> {
    // At a port that the application names peers may connect first.
    let is_later = params.links.opens_later() && bind.port() == 0 && crate::job::is_of_one_host();
    let mut options = params.link(bind);
    if is_later {
        options.port = link::Port::ListensLater;
    }
    let mut links = Links::open(options).map_err(with("shm"))?;
    if let Some(mut tcp) = params.tcp() {
        if let Some(key) = key {
            (tcp.key, tcp.secret) = (key.job(), true);
        }
        match (&params.links.verbs, params.links.below()) {
            (Some(verbs), _) => add_verbs(&mut links, params, verbs, tcp)?,
            (None, Some(names)) => add_ofi(&mut links, params, &names, tcp)?,
            (None, None) if is_later => links.add_tcp_later(tcp).map_err(with("tcp"))?,
            (None, None) => links.add_tcp(tcp).map_err(with("tcp"))?,
        }
        links.set_shm(params.links.shm);
    }
    for (link, why) in params.links.absent() {
        links.set_absent(link, why);
    }
    Ok(links)
}

/// Adds a link over an RDMA device; where none serves, over a provider or by tcp if these are named, too.
fn add_verbs(
    links: &mut Links,
    params: &Params,
    verbs: &verbs::Options,
    tcp: TcpOptions,
) -> Result<(), NotOpened> {
    let own = links.addr();
    let (below, refused) = match verbs::open(verbs, own.ip()) {
        Ok((below, refused)) => {
            let others = if refused.is_empty() { "no other".into() } else { refused.join("; ") };
            log::info!("{own}: verbs is over {}; refused: {others}", below.about().detail);
            (Ok(below), refused)
        }
        Err(refused) => {
            let why = refused.join("; ");
            log::warn!("{own}: no RDMA device serves: {why}");
            match params.links.below() {
                Some(names) => return add_ofi(links, params, &names, tcp),
                None if params.links.tcp => (Err(why), Vec::new()),
                None => return Err(without_tcp("verbs", &why)),
            }
        }
    };
    add_below(links, params, tcp, below, &refused)
}

/// Adds a link over the first of these providers that can be opened.
fn add_ofi(links: &mut Links, params: &Params, names: &[&str], tcp: TcpOptions) -> Result<(), NotOpened> {
    let own = links.addr();
    let not = |errno, why| NotOpened { link: "ofi", errno, why };
    let core = crate::log::core().ok_or_else(|| not(Errno::NOSYS, "there is no core of libfabric".into()))?;
    let beyond = Beyond { devices: params.device_direct, writes: params.links.writes };
    let (below, refused) = match ofi::open(&core, names, own.ip(), beyond) {
        Ok((below, refused)) => {
            let others = if refused.is_empty() { "none before it".into() } else { refused.join("; ") };
            let about = below.about();
            log::info!("{own}: ofi is over {} ({}); refused: {others}", about.name, about.detail);
            (Ok(below), refused)
        }
        Err(refused) => {
            let why = refused.join("; ");
            if !params.links.tcp {
                return Err(without_tcp("ofi", &why));
            }
            // One that is named is missed.
            let level = if params.links.names_below() { log::Level::Warn } else { log::Level::Info };
            log::log!(level, "{own}: no provider is opened below, and other hosts are reached by tcp: {why}");
            (Err(why), Vec::new())
        }
    };
    add_below(links, params, tcp, below, &refused)
}

/// Adds a link over a network below, or one that says why there is none; `refused`: what was tried before it.
fn add_below<F: Below + std::fmt::Debug + 'static>(
    links: &mut Links,
    params: &Params,
    tcp: TcpOptions,
    below: Result<F, String>,
    refused: &[String],
) -> Result<(), NotOpened> {
    let options = params.below(&tcp);
    let over = |tcp| {
        let mut link = BelowLink::new(tcp, below, options)?;
        link.note_refused(refused);
        Ok(Box::new(link) as link::BoxedLink)
    };
    links.add_over_tcp(tcp, over).map_err(with(F::LINK))
}

/// Nothing serves that this link needs, and tcp is not to be used in its place.
fn without_tcp(link: &'static str, why: &str) -> NotOpened {
    let why = format!("{why}; no endpoint can be opened until tcp is added to FI_STRAIT_LINKS");
    NotOpened { link, errno: Errno::NODATA, why }
}

/// What goes by a provider below arrives at exit(3) only if this process makes progress in it then. Sockets
/// of tcp need none: what has completed is with the kernel, and writes that are kept back have not.
pub(super) fn settle_at_exit(shared: &Arc<Shared>) {
    let params = param::get();
    if params.links.has_network() {
        runtime::settle_at_exit(shared, params.tcp.linger);
    }
}

/// What each link of an endpoint of this name would be: one is opened, and closed.
pub(super) fn standing(bind: Addr, key: Option<&AuthKey>) -> Vec<Standing> {
    standing_with(&param::get(), bind, key)
}

fn standing_with(params: &Params, bind: Addr, key: Option<&AuthKey>) -> Vec<Standing> {
    match open_with(params, bind, key) {
        Ok(links) => links.standing(),
        Err(NotOpened { link, why, .. }) => vec![Standing { link, offers: Err(why) }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::tests::with_links;

    fn offers_of(list: &str) -> Vec<(&'static str, bool, String)> {
        let own = Addr::new("127.0.0.1:0".parse().unwrap());
        let all = standing_with(&with_links(list), own, None);
        all.into_iter().map(|s| (s.link, s.offers.is_ok(), s.offers.unwrap_or_else(|why| why))).collect()
    }

    #[test]
    fn each_link_says_whether_it_is_to_be_had() {
        let all = offers_of("shm");
        assert_eq!(
            all.iter().map(|t| (t.0, t.1)).collect::<Vec<_>>(),
            [("shm", true), ("tcp", false), ("ofi", false)]
        );
        assert!(all[1..].iter().all(|t| t.2 == "FI_STRAIT_LINKS does not name it"), "{all:?}");
        let all = offers_of("tcp");
        assert_eq!(
            all.iter().map(|t| (t.0, t.1)).collect::<Vec<_>>(),
            [("shm", false), ("tcp", true), ("ofi", false)]
        );
        assert!(all[1].2.starts_with("listens on 127.0.0.1:"), "{all:?}");
    }

    #[test]
    fn an_endpoint_that_cannot_be_opened_says_which_link_it_lacks() {
        // There is no core in these tests.
        let all = offers_of("shm,ofi:tcp");
        assert_eq!((all.len(), all[0].0, all[0].1), (1, "ofi", false));
        assert!(all[0].2.contains("no core"), "{all:?}");
    }

    #[test]
    fn an_rdma_device_that_does_not_serve_is_missed_and_tcp_serves_if_it_is_named() {
        // No host of the tests has one by this name.
        let without = |list| {
            let mut params = with_links(list);
            params.links.verbs.as_mut().unwrap().device = Some("none_7".into());
            let own = Addr::new("127.0.0.1:0".parse().unwrap());
            let all = standing_with(&params, own, None);
            all.into_iter().map(|s| (s.link, s.offers)).collect::<Vec<_>>()
        };
        let all = without("shm,verbs");
        assert!(all.len() == 1 && all[0].0 == "verbs", "{all:?}");
        assert!(all[0].1.as_ref().unwrap_err().contains("tcp is added to FI_STRAIT_LINKS"), "{all:?}");
        let all = without("shm,verbs,tcp");
        let of = |link| all.iter().find(|s| s.0 == link).unwrap_or_else(|| panic!("no {link}: {all:?}"));
        assert!(of("verbs").1.is_err() && of("tcp").1.is_ok(), "{all:?}");
    }

    #[test]
    fn without_memory_the_limit_is_reported() {
        let lack = with("shm")(std::io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(lack.errno, Errno::NOMEM);
        assert!(
            lack.why.contains("; no limit of this process") || lack.why.contains("; raise "),
            "{}",
            lack.why
        );
    }

    #[test]
    fn the_text_of_a_path_ends_with_links_that_were_not_opened() {
        let own = Addr::new("127.0.0.1:0".parse().unwrap());
        for (list, name, begins, ends) in [
            ("shm", "198.51.100.1:7", "no link leads to its address; not shm: its ", "name it"),
            (
                "shm",
                "127.0.0.1:7",
                "shm ",
                "this host's; not tcp: FI_STRAIT_LINKS does not name it; not ofi: FI_STRAIT_LINKS does not name it",
            ),
            (
                "tcp",
                "127.0.0.1:7",
                "tcp not connected, ",
                "s of silence; not shm: shared memory is not to be used; not ofi: FI_STRAIT_LINKS does not name it",
            ),
            (
                "tcp",
                "[::1]:7",
                "shm ",
                "another version of IP: bind to an unspecified one; not ofi: FI_STRAIT_LINKS does not name it",
            ),
        ] {
            let mut links = open_with(&with_links(list), own, None).unwrap();
            let peer = links.peer(&Addr::new(name.parse().unwrap()));
            let line = links.describe(peer);
            assert!(line.starts_with(begins) && line.ends_with(ends), "{list}, {name}: {line}");
        }
    }
}
