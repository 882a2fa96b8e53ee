//! The listening sockets of one endpoint: bound first, listening when novalet says READY.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Failure;
use crate::control::plane::DataPlane;
use crate::control::why::Why;
use crate::state::endpoint::{Endpoint, PortSpec};

/// Ports that are bound or listening.
#[derive(Default)]
pub(super) struct Ports(Vec<Open>);

struct Open {
    spec: PortSpec,
    /// `None` once the data plane's threads have them.
    bound: Option<Vec<OwnedFd>>,
}

impl Ports {
    /// Closes what is not wanted any more and binds what is new.
    pub(super) fn bind(
        &mut self,
        plane: &dyn DataPlane,
        endpoint: &Arc<Endpoint>,
        wanted: &[PortSpec],
    ) -> Result<(), Failure> {
        self.0.retain(|open| {
            let stays = wanted.contains(&open.spec);
            if !stays && open.bound.is_none() {
                plane.close_port(endpoint, &open.spec);
            }
            stays
        });
        for spec in wanted {
            if self.0.iter().any(|open| open.spec == *spec) {
                continue;
            }
            // Before anything can fail: nobody may go on as a caller that the new port would not have let in.
            plane.supersede(endpoint, spec);
            let bound = plane.bind(endpoint, spec).map_err(|error| failed(spec, "bound", &error))?;
            self.0.push(Open { spec: spec.clone(), bound: Some(bound) });
        }
        Ok(())
    }

    /// Forgets all of them; the endpoint's own end has ended what was open.
    pub(super) fn close(&mut self, plane: &dyn DataPlane, endpoint: &Arc<Endpoint>) {
        for open in self.0.drain(..).filter(|open| open.bound.is_none()) {
            plane.close_port(endpoint, &open.spec);
        }
    }

    /// Listens on everything that is bound.
    pub(super) fn listen(&mut self, plane: &dyn DataPlane, endpoint: &Arc<Endpoint>) -> Result<(), Failure> {
        // A socket that failed to listen is gone; it is bound anew at the next try.
        let mut result = Ok(());
        self.0.retain_mut(|open| {
            let Some(sockets) = open.bound.take() else { return true };
            let listens = plane.listen(endpoint, &open.spec, sockets);
            if let Err(error) = &listens {
                result = Err(failed(&open.spec, "opened for connections", error));
            }
            listens.is_ok()
        });
        result
    }
}

fn failed(spec: &PortSpec, what: &str, error: &std::io::Error) -> Failure {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied => " (ports below 1024 need CAP_NET_BIND_SERVICE)",
        std::io::ErrorKind::AddrInUse => " (another program has it; ss -ltnp shows which)",
        _ => "",
    };
    Failure {
        why: Why::BindFailed,
        message: format!("port {} ({}) cannot be {what}: {error}{hint}", spec.port, spec.name),
    }
}
