//! Tests of the reader of PTX.

use super::parse;

#[test]
fn an_empty_kernel_is_read() {
    let module = parse(".version 8.0\n.target sm_80\n.entry k() { ret; }").unwrap();
    assert_eq!(module.version, (8, 0));
    assert_eq!(module.functions[0].name, "k");
}
