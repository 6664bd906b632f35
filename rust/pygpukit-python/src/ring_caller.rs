//! `RingCaller`: requests to one actor of a device and its answers. The way of every round trip, so what can be done while
//! the device is at work is done then.

use std::time::Instant;

use pygpukit_core::ring::mapped::Header;
use pygpukit_core::ring::peer::Sent;
use pygpukit_core::ring::queue::NEVER;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::errors::{ToPy, check_signals};
use crate::inside::detached;
use crate::ring_link::{RingLink, fate, seconds};
use crate::ring_message::MessageBase;

#[pyclass(frozen, module = "pygpukit", name = "RingCaller")]
pub struct RingCaller {
    link: Py<RingLink>,
    actor: usize,
    /// What is the same of all requests.
    header: Header,
    /// Of a request.
    bytes: usize,
    output: Option<Output>,
}

/// The class of the answers.
struct Output {
    class: Py<PyType>,
    kind: u32,
    /// Are all fields arrays, which are made of the bytes when they are looked at?
    is_raw: bool,
}

impl RingCaller {
    pub fn new(
        link: Py<RingLink>,
        actor: usize,
        header: Header,
        output: Option<Bound<'_, PyType>>,
    ) -> PyResult<RingCaller> {
        let known = |class: Bound<'_, PyType>| -> PyResult<Output> {
            let (kind, is_raw) = (class.getattr("type_id")?.extract()?, class.getattr("_is_raw")?.extract()?);
            Ok(Output { class: class.unbind(), kind, is_raw })
        };
        let bytes = link.get().link.peer(actor).py()?.bytes;
        Ok(RingCaller { link, actor, header, bytes, output: output.map(known).transpose()? })
    }
}

#[pymethods]
impl RingCaller {
    /// Send a message for a call and wait for the answer. If that is not of the class that was said: what became of the
    /// message, as `RingLink.send`, 4 if it came back as a dead letter, 5 if the answer has not come, or 6 if none will; and
    /// the answer or the letter. None if the message does not fit its layout. It has a number of its own already if it is
    /// marked as a call.
    #[pyo3(signature = (message, timeout, is_marked = false))]
    fn ask<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, MessageBase>,
        timeout: Option<f64>,
        is_marked: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let request = message.get();
        let link = self.link.get();
        let payload = match message.call_method0(intern!(py, "_packed")) {
            Ok(payload) => payload.cast_into::<PyBytes>().ok(),
            Err(error) if error.is_instance_of::<PyException>(py) => None,
            Err(error) => return Err(error),
        };
        let Some(payload) = payload.filter(|payload| payload.as_bytes().len() == self.bytes) else { return Ok(None) };
        let mut timeout = seconds(timeout)?;
        let deadline = match request.deadline_ns() {
            NEVER => 0,
            deadline => {
                let began = Instant::now();
                let deadline = detached(py, || link.link.to_device(deadline, timeout, &mut check_signals))?;
                timeout = timeout.map(|limit| limit.saturating_sub(began.elapsed()));
                deadline
            }
        };
        let id = if is_marked { request.id() } else { request.number_for_call() };
        let (priority, correlation) = (request.priority(), request.correlation());
        let header = Header { id, priority, correlation, deadline, ..self.header };
        let begun = link.link.begin(self.actor, header, payload.as_bytes()).py()?;
        let answer = self.output.as_ref().map(|output| MessageBase::blank(output.class.bind(py))).transpose();
        let (sent, mut reply) = detached(py, || begun.finish(timeout, &mut check_signals))?;
        if let (Sent::Accepted, Some(reply)) = (sent, &mut reply) {
            request.settle(id);
            if let Some(output) = &self.output
                && reply.header.kind == output.kind
                && let Some(answer) = answer?
            {
                let bytes = PyBytes::new(py, &reply.payload);
                if output.is_raw {
                    answer.setattr(intern!(py, "_raw"), (bytes, 0))?;
                } else {
                    answer.call_method1(intern!(py, "_fill"), (bytes, 0))?;
                }
                answer.get().came(reply.header.id, reply.header.priority, request);
                return Ok(Some(answer.into_any()));
            }
            reply.header.correlation = request.id();
        }
        let parts = reply.map(|message| link.parts(py, &message));
        Ok(Some((fate(sent), parts).into_pyobject(py)?.into_any()))
    }
}
