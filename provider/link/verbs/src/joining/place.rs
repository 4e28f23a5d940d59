//! The address by which connections of an iWARP device are made.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipc::Ports;
use rdma_sys::{CmChannel, CmId, CmLibrary, Device, Error};

/// An error of librdmacm's, with the kind of its errno.
fn refused(e: Error) -> io::Error {
    refused_for(&e, e.to_string())
}

fn refused_for(e: &Error, why: String) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(e.errno()).kind(), why)
}

/// The address of a device that its connections have, what makes them, and the ports that are listened at.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    library: CmLibrary,
    address: IpAddr,
    ports: Ports,
}

impl Place {
    /// The endpoint's address, if it is this device's. `ports`: those that may be listened at.
    pub(crate) fn find(
        path: Option<&Path>,
        device: &Device,
        address: IpAddr,
        ports: Ports,
    ) -> Result<Place, String> {
        let library = CmLibrary::open(path).map_err(|e| format!("its connections are iWARP's: {e}"))?;
        let place = Place { library, address, ports };
        place.bind(device, 0).map(|_| place).map_err(|e| e.to_string())
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// An id of the device's, by its address.
    fn bind(&self, device: &Device, port: u16) -> io::Result<(CmChannel, CmId)> {
        let Place { library, address, .. } = self;
        let channel = CmChannel::new(library).map_err(refused)?;
        let id = CmId::new(&channel).map_err(refused)?;
        let needs = "iWARP's connections need one of its own";
        id.bind((*address, port).into()).map_err(|e| {
            refused_for(&e, format!("it has not the endpoint's address {address} ({e}): {needs}"))
        })?;
        if id.is_of(device) {
            return Ok((channel, id));
        }
        let found = id.device_name().unwrap_or_else(|| "no device".into());
        Err(io::Error::other(format!(
            "it has not the endpoint's address {address}, by which librdmacm finds {found}: {needs}"
        )))
    }

    /// Listens at a port that is free: which.
    pub(super) fn listen(&self, device: &Device) -> io::Result<(CmChannel, CmId, u16)> {
        self.ports.first_free(|port| {
            let (channel, id) = self.bind(device, port)?;
            let port = id.listen().map_err(refused)?;
            Ok((channel, id, port))
        })
    }
}
