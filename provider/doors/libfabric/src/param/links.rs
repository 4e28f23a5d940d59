//! Which links FI_STRAIT_LINKS names.

/// The links there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    pub shm: bool,
    pub tcp: bool,
    pub(super) ofi: Ofi,
    /// Memory is written by the provider below, too.
    pub writes: bool,
    /// Where it is opened, how an RDMA device is.
    pub verbs: Option<verbs::Options>,
}

/// Whether another provider is opened below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ofi {
    #[default]
    No,
    /// One of a fabric, where the host has an adapter.
    WithAdapter,
    /// One of these, or (where there are none) the best.
    Yes(Vec<String>),
}

impl Links {
    /// Those of a list, if all names in it are links'.
    pub(super) fn of(list: &str) -> Option<Links> {
        let mut links = Links { shm: false, tcp: false, ofi: Ofi::No, writes: false, verbs: None };
        for name in list.split(',').map(str::trim) {
            match (name, name.strip_prefix("ofi:").map(str::trim)) {
                ("shm", _) => links.shm = true,
                ("tcp", _) => links.tcp = true,
                ("verbs", _) => links.verbs = Some(verbs::Options::default()),
                ("ofi", _) => links.ofi = Ofi::Yes(links.named()),
                (_, Some(below)) if !below.is_empty() => {
                    links.ofi = Ofi::Yes([links.named(), vec![below.to_owned()]].concat());
                }
                _ => return None,
            }
        }
        Some(links)
    }

    fn named(&self) -> Vec<String> {
        if let Ofi::Yes(names) = &self.ofi { names.clone() } else { Vec::new() }
    }

    /// The providers that may be opened below, best first; `None`: none is to be. What has no hardware of its
    /// own is no better than a link over TCP.
    pub(crate) fn below(&self) -> Option<Vec<&str>> {
        match &self.ofi {
            Ofi::No => None,
            Ofi::WithAdapter => ofi::has_adapter().then(|| ofi::FABRICS.to_vec()),
            Ofi::Yes(names) if !names.is_empty() => Some(names.iter().map(String::as_str).collect()),
            Ofi::Yes(_) if self.tcp => Some(ofi::FABRICS.to_vec()),
            Ofi::Yes(_) => Some([&ofi::FABRICS[..], &ofi::SOFT].concat()),
        }
    }

    /// Whether the user names a provider below.
    pub(crate) fn names_below(&self) -> bool {
        !self.named().is_empty()
    }

    /// Links that are not opened, and why. Where one over a network below is, the connections that it needs
    /// are its own.
    pub(crate) fn absent(&self) -> Vec<(&'static str, String)> {
        let unnamed = |link| (link, format!("{} does not name it", settings::LINKS.variable()));
        let mut all = Vec::new();
        if !self.tcp && !self.has_network() {
            all.push(unnamed("tcp"));
        }
        match (&self.ofi, self.below()) {
            (_, Some(_)) => {}
            (Ofi::WithAdapter, None) => all.push(("ofi", "this host has no adapter of a fabric".into())),
            _ => all.push(unnamed("ofi")),
        }
        if self.verbs.is_none() && verbs::has_device() {
            all.push(unnamed("verbs"));
        }
        all
    }

    /// Whether there is a network below, whose peers are met by connections.
    pub(crate) fn has_network(&self) -> bool {
        self.below().is_some() || self.verbs.is_some()
    }

    /// Whether tcp is the one further link, which may be opened when a peer of another host is known.
    pub(crate) fn opens_later(&self) -> bool {
        self.shm && self.tcp && !self.has_network()
    }

    /// Whether a port listens.
    pub(super) fn listens(&self) -> bool {
        self.tcp || self.has_network()
    }
}

impl Default for Links {
    fn default() -> Links {
        Links { shm: true, tcp: true, ofi: Ofi::WithAdapter, writes: false, verbs: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;
    use super::*;

    #[test]
    fn links_are_those_of_the_list() {
        let links = |list| with(&[("links", list)]).0.links;
        let none = Links { shm: false, tcp: false, ofi: Ofi::No, writes: false, verbs: None };
        assert_eq!(links("shm"), Links { shm: true, ..none.clone() });
        assert_eq!(links(" tcp , shm"), Links { shm: true, tcp: true, ..none.clone() });
        assert_eq!(links("tcp"), Links { tcp: true, ..none.clone() });
        assert_eq!(links("ofi"), Links { ofi: Ofi::Yes(vec![]), ..none.clone() });
        let below = |list| links(list).below().map(|names| names.join(" "));
        assert_eq!(below("shm,tcp"), None);
        assert_eq!(below("shm,ofi:tcp;ofi_rxm, ofi:efa"), Some("tcp;ofi_rxm efa".into()));
        assert_eq!(below("shm,ofi,tcp"), Some(ofi::FABRICS.join(" ")));
        assert_eq!(below("shm,ofi"), Some([&ofi::FABRICS[..], &ofi::SOFT].concat().join(" ")));
        assert_eq!(Links::of("shm,ofi:"), None);
        for links in ["shm,ofi", "nonsense"] {
            assert!(with(&[("links", links), ("ofi_writes", "yes")]).0.links.writes, "{links}");
        }
        let (p, complaints) = with(&[("links", "shm,verps")]);
        assert_eq!(p.links, Links::default());
        assert!(complaints[0].contains("FI_STRAIT_LINKS=shm,verps"), "{complaints:?}");
        assert!(with(&[("links", "shm")]).0.tcp().is_none());
    }

    #[test]
    fn a_device_is_used_by_name_alone_and_as_its_parameters_say() {
        assert_eq!(with(&[("verbs_device", "mlx5_1")]).0.links.verbs, None);
        let (p, complaints) = with(&[
            ("links", "shm,verbs"),
            ("verbs_device", "mlx5_1"),
            ("verbs_port", "2"),
            ("verbs_gid", "3"),
            ("verbs_mtu", "2048"),
            ("verbs_on_demand", "yes"),
            ("verbs_rails", "2"),
            ("ports", "40000-40999"),
        ]);
        assert_eq!(complaints, Vec::<String>::new());
        let options = verbs::Options {
            device: Some("mlx5_1".into()),
            port: Some(2),
            gid: Some(3),
            mtu: Some(2048),
            on_demand: true,
            rails: 2,
            ports: link::Ports::between(40_000, 40_999),
            ..verbs::Options::default()
        };
        assert_eq!(p.links.verbs, Some(options));
        assert!(p.tcp().is_some() && !p.links.tcp, "peers are met by connections");
        let (p, complaints) = with(&[("links", "verbs"), ("verbs_mtu", "1500"), ("verbs_port", "0")]);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        // The nearest port that there can be.
        assert_eq!(p.links.verbs, Some(verbs::Options { port: Some(1), ..verbs::Options::default() }));
    }
}
