//! `RingCaller`: requests to one actor of a device and its answers. The way of every round trip, so what can be done while
//! the device is at work is done then.

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
        Ok(RingCaller { link, actor, header, output: output.map(known).transpose()? })
    }
}

#[pymethods]
impl RingCaller {
    /// Send a message for a call and wait for the answer. If that is not of the class that was said: what became of the
    /// message, as `RingLink.send`, 4 if it came back as a dead letter, or 5 if the answer has not come; and the answer or
    /// the letter. None if the message does not fit its layout, or was sent before, unless it is marked as a call already.
    #[pyo3(signature = (message, timeout, is_marked = false))]
    fn ask<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, MessageBase>,
        timeout: Option<f64>,
        is_marked: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let request = message.get();
        if !is_marked && !request.mark() {
            return Ok(None);
        }
        let payload = match message.call_method0(intern!(py, "_packed")) {
            Ok(payload) => payload.cast_into::<PyBytes>()?,
            Err(error) => {
                if !is_marked {
                    request.unmark();
                }
                return if error.is_instance_of::<PyException>(py) { Ok(None) } else { Err(error) };
            }
        };
        let link = self.link.get();
        let timeout = seconds(timeout)?;
        let deadline = match request.deadline_ns() {
            NEVER => 0,
            deadline => detached(py, || link.link.to_device(deadline, timeout, &mut check_signals))?,
        };
        let (id, priority, correlation) = (request.id(), request.priority(), request.correlation());
        let header = Header { id, priority, correlation, deadline, ..self.header };
        let begun = link.link.begin(self.actor, header, payload.as_bytes()).py()?;
        let answer = self.output.as_ref().map(|output| MessageBase::blank(output.class.bind(py))).transpose();
        let (sent, reply) = detached(py, || begun.finish(timeout, &mut check_signals))?;
        if let (Sent::Accepted, Some(reply), Some(output)) = (sent, &reply, &self.output)
            && reply.header.kind == output.kind
            && let Some(answer) = answer?
        {
            let bytes = PyBytes::new(py, &reply.payload);
            if output.is_raw {
                answer.setattr(intern!(py, "_raw"), (bytes, 0))?;
            } else {
                answer.call_method1(intern!(py, "_fill"), (bytes, 0))?;
            }
            answer.get().ends(request);
            return Ok(Some(answer.into_any()));
        }
        let parts = reply.map(|message| link.parts(py, &message));
        Ok(Some((fate(sent), parts).into_pyobject(py)?.into_any()))
    }
}
