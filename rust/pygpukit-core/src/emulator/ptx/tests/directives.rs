//! Directives of module scope and of functions.

use super::super::parse;
use super::{HEAD, function, read, refuse, text};

#[test]
fn a_module_starts_with_its_version_and_target() {
    let module = read("// comment\n.version 9.4 /* two\nlines */ .target sm_90a, debug\n.address_size 64\n");
    assert_eq!(module.version, (9, 4));
    assert_eq!(module.target, ["sm_90a", "debug"]);
    assert_eq!(parse(".version 8.10\n.target sm_80").unwrap().version, (8, 10));
    assert!(parse(&format!("{HEAD}\n\0\0")).is_ok());
}

#[test]
fn a_text_without_them_is_refused() {
    for (text, line, message) in [
        ("", 1, "the text ends here, where `.version`"),
        ("\n\n", 3, "the text ends here, where `.version`"),
        (".target sm_80", 1, "found `.target`, expected `.version`"),
        (".version 8", 1, "found `8`, expected a version such as `8.0`"),
        (".version abc.1", 1, "found `abc.1`, expected a version"),
        (".version 8.99999999999", 1, "expected a version"),
        (".version 99.0", 1, "this is PTX of version 99.0, and only versions 8 and 9 are supported"),
        ("\n.version 7.8\n.target sm_80", 2, "this is PTX of version 7.8"),
        (".version 10.0", 1, "this is PTX of version 10.0"),
        (".version 8.0\n.entry k() {}", 2, "found `.entry`, expected `.target` after `.version`"),
        (".version 8.0\n.target", 2, "the text ends here, where a target such as `sm_80`"),
        (".version 8.0\n.target sm_80\n.version 8.0", 3, "found a second `.version`"),
        (".version 8.0\n.target sm_80\n.address_size 32", 3, "the address size is 32, only 64 is supported"),
        ("\u{7f}ELF\u{2}\u{1}", 1, "the character `\\u{7f}` has no place in PTX"),
        (".version 8.0\n.target sm_80\n\u{e9}", 3, "the character `\u{e9}` has no place in PTX"),
        (".version 8.0\n.target sm_80 /* x\n\n", 2, "the text ends inside a comment"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.message.contains(message), "{text:?}: {error}");
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
}

#[test]
fn an_error_tells_its_place() {
    let error = refuse("\n  .global .u32 x y;\n");
    let message = "found `y`, expected `;` or `,` after a variable, in `.global .u32 x y;`";
    assert_eq!((error.line, error.column, error.message.as_str()), (5, 18, message));
    assert_eq!(error.to_string(), format!("PTX line 5: {message}"));
}

#[test]
fn a_long_line_is_shortened_around_the_error() {
    let error = refuse(&format!(".entry k() {{ {} ?; {} }}", "ret; ".repeat(99), "ret; ".repeat(99)));
    let (_, quoted) = error.message.split_once(", in `").unwrap();
    assert!(quoted.len() < 90 && quoted.starts_with("...") && quoted.ends_with("...`"), "{error}");
    assert!(quoted.contains("ret;  ?; ret;"), "{error}");
    let name = "n".repeat(500);
    assert!(refuse(&format!(".global .u32 x {name};")).message.len() < 250);
}

#[test]
fn files_sections_and_pragmas_are_passed() {
    let text = text(
        ".file 1 \"dir/a \\\"b\\\".cu\"\n.file 2 \"C:\\temp\\\\x.cu\", 1700000000, 12\n\
         .section .debug_info\n{\n.b32 11430\n.b8 2, -1 // {\nlabel:\n.b64 label+0x4, .debug_loc\n{ } }\n\
         .section .debug_macinfo { }\n.pragma \"nounroll\", \"x\";\n;;\n.loc 1 2 3\n.global .u32 x;",
    );
    let module = read(&text);
    assert_eq!(module.files, [(1, "dir/a \"b\".cu".to_owned()), (2, "C:\\temp\\x.cu".to_owned())]);
    assert_eq!(module.variables.len(), 1);
}

#[test]
fn bad_module_directives_are_refused() {
    for (code, message) in [
        (".alias a, b;", "`.alias` is not supported"),
        (".tex .u32 x;", "the directive `.tex` is not supported at module scope"),
        (".reg .b32 x;", "the directive `.reg` is not supported at module scope"),
        (".weak 5", "found `5`, expected `.func`, `.entry` or a state space"),
        ("add.s32 a, b, c;", "found `add.s32`, expected a directive"),
        (".file x", "found `x`, expected the number of a file"),
        (".file 1 x", "found `x`, expected the name of a file"),
        (".file 1 \"abc", "the string that starts here has no closing"),
        (".file 1 \"abc\n\"", "the string that starts here has no closing"),
        (".section .debug_str { {\n}", "the text ends here, where `}` that closes the section of line 4"),
        (".section .debug_str x;", "expected `{` after the name of a section"),
        (".pragma nounroll;", "found `nounroll`, expected a string of `.pragma`"),
        (".pragma \"a\"", "the text ends here, where `;` after `.pragma` was expected"),
        (". x", "the character `.` has no place in PTX"),
        ("#line 5", "the character `#` has no place in PTX"),
    ] {
        let error = refuse(code);
        assert!(error.message.contains(message), "{code}: {error}");
    }
}

#[test]
fn functions_have_signatures() {
    let text = text(
        ".extern .func (.param .b32 func_retval0) vprintf\n(\n.param .b64 a,\n.param .b64 b\n)\n;\n\
         .extern .func __assertfail (.param .b64 a) .noreturn;\n\
         .weak .func (.param .align 8 .b8 r[16]) f(.param .u64 .ptr .global .align 4 p) .abi_preserve 8 .noreturn { ret; }\n\
         .visible .func .attribute(.unified(1, 2)) g .abi_preserve_control 3 { ret; }\n\
         .func h(.param .b32 n, .param .align 4 .b8 rest[]) { ret; }\n\
         .visible .entry k(.param .align 16 .b8 s[32], .param .u64 .ptr .align 1 y, .param .f32 z) { ret; }",
    );
    let module = read(&text);
    let names: Vec<_> = module.functions.iter().map(|f| (f.name, f.entry, f.external, f.body.is_some())).collect();
    let expected = [
        ("vprintf", false, true, false),
        ("__assertfail", false, true, false),
        ("f", false, false, true),
        ("g", false, false, true),
        ("h", false, false, true),
        ("k", true, false, true),
    ];
    assert_eq!(names, expected);
    assert_eq!(module.functions[0].line, 4);
    assert_eq!(module.functions[5].line, 14);
    let f = function(&module, "f");
    assert_eq!((f.returns[0].align, f.returns[0].bytes), (8, Some(16)));
    assert_eq!((f.params[0].name, f.params[0].align), ("p", 8));
    assert!(function(&module, "g").params.is_empty());
    assert_eq!(function(&module, "h").params[1].bytes, None);
    let k = function(&module, "k");
    let sizes: Vec<_> = k.params.iter().map(|p| (p.name, p.align, p.bytes.unwrap())).collect();
    assert_eq!(sizes, [("s", 16, 32), ("y", 8, 8), ("z", 4, 4)]);
}

#[test]
fn kernels_have_bounds_and_clusters() {
    let text = text(
        ".entry a() .maxntid 128, 2, 3 .minnctapersm 2 .maxnreg 64 .maxclusterrank 8 .maxnctapersm 4 { }\n\
         .entry b .reqntid 256 .explicitcluster .pragma \"x\"; { }\n\
         .entry c .explicitcluster .reqnctapercluster 2, 1, 1 .unique { }\n\
         .entry d .reqntid 32, 4 .reqnctapercluster 2, 2 .explicitcluster .blocksareclusters { }",
    );
    let module = read(&text);
    let a = function(&module, "a");
    assert_eq!((a.max_threads, a.required_threads, a.cluster), (768, None, None));
    let b = function(&module, "b");
    assert_eq!((b.max_threads, b.required_threads, b.cluster), (0, Some([256, 1, 1]), Some([0, 0, 0])));
    assert_eq!(function(&module, "c").cluster, Some([2, 1, 1]));
    let d = function(&module, "d");
    assert_eq!((d.required_threads, d.cluster), (Some([32, 4, 1]), Some([2, 2, 1])));
    assert!(d.blocks_are_clusters && !b.blocks_are_clusters);
}

#[test]
fn bad_signatures_are_refused() {
    for (code, message) in [
        (".entry { }", "found `{`, expected the name of a function"),
        (".entry k() .fancy 3 { }", "the directive `.fancy` is not supported for the function `k`"),
        (".entry k() .maxntid x { }", "found `x`, expected a number of threads or blocks"),
        (".entry k() .maxntid 65536, 65536 { }", "the threads of `.maxntid` do not fit in 32 bits"),
        (".entry k() .maxntid 1, 1, 1, 1 { }", "found `,`, expected `{` or `;` after the signature of `k`"),
        (".func (.reg .b32 r) f() { }", "parameters in `.reg` are not supported"),
        (".func f(.global .b32 r) { }", "found `.global`, expected `.param`"),
        (".func f(.param .b32 r; { }", "found `;`, expected `)` or `,` after a parameter"),
        (".func f(.param .b32 r,) { }", "found `)`, expected `.param`"),
        (".entry k()", "the text ends here, where `{` or `;` after the signature of `k`"),
        (".entry k() {\n ret;\n", "the text ends here, where `}` that closes the block of line 4"),
    ] {
        let error = refuse(code);
        assert!(error.message.contains(message), "{code}: {error}");
    }
}
