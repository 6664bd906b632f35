//! What NVRTC emits, whole texts and excerpts.

use super::super::ast::{Init, Instruction, Module, Operand, Space, Statement};
use super::{function, instructions, read};

/// Texts of several compilers and targets; each states its source.
pub(super) const TEXTS: [(&str, &str); 6] = [
    ("saxpy.sm_80", include_str!("../../../../tests/ptx/saxpy.sm_80.ptx")),
    ("saxpy.sm_90a", include_str!("../../../../tests/ptx/saxpy.sm_90a.ptx")),
    ("calls.sm_90a", include_str!("../../../../tests/ptx/calls.sm_90a.ptx")),
    ("calls.sm_100", include_str!("../../../../tests/ptx/calls.sm_100.ptx")),
    ("inline_asm.sm_120", include_str!("../../../../tests/ptx/inline_asm.sm_120.ptx")),
    ("debug.sm_80", include_str!("../../../../tests/ptx/debug.sm_80.ptx")),
];

fn source(name: &str) -> &'static str {
    TEXTS.iter().find(|(found, _)| *found == name).expect(name).1
}

fn of<'m, 'a>(module: &'m Module<'a>, name: &str) -> Vec<&'m Instruction<'a>> {
    instructions(function(module, name).body.as_deref().unwrap())
}

/// Instructions, as many as there are lines in the text that end one.
#[test]
fn nothing_of_a_text_is_lost() {
    for (name, text) in TEXTS {
        let module = read(text);
        let bodies = module.functions.iter().filter_map(|f| f.body.as_deref());
        let seen: usize = bodies.clone().map(|body| instructions(body).len()).sum();
        // Statements end with `;`, declarations start with a dot or a label, inline assembly may share a line.
        let statements =
            text.lines().map(|line| line.split("//").next().unwrap_or("")).flat_map(|l| l.split_inclusive(';'));
        let written = statements
            .filter(|s| s.ends_with(';'))
            .map(|s| s.trim_start_matches(['{', ' ', '\t']).trim())
            .filter(|s| *s != ";" && !s.starts_with('.') && !s.contains(".callprototype"))
            .count();
        let places = bodies.map(|body| places(body)).sum::<usize>();
        assert_eq!(seen, written, "{name}");
        assert_eq!(places, text.matches(".loc\t").count(), "{name}");
        let lines = module.functions.iter().filter_map(|f| f.body.as_deref()).flat_map(instructions);
        for instruction in lines {
            let line = text.lines().nth(instruction.line as usize - 1).unwrap();
            assert!(line.contains(instruction.words[0]), "{name}: {instruction:?} is not in `{line}`");
        }
    }
}

fn places(statements: &[Statement<'_>]) -> usize {
    let count = |statement: &Statement<'_>| match statement {
        Statement::Location { .. } => 1,
        Statement::Block(block) => places(block),
        _ => 0,
    };
    statements.iter().map(count).sum()
}

#[test]
fn saxpy_is_read() {
    for (name, version, target) in [("saxpy.sm_80", (8, 1), "sm_80"), ("saxpy.sm_90a", (9, 4), "sm_90a")] {
        let module = read(source(name));
        assert_eq!((module.version, module.target.as_slice()), (version, [target].as_slice()));
        assert_eq!(module.files, [(1, "saxpy.cu".to_owned())]);
        let saxpy = function(&module, "saxpy");
        assert!(saxpy.entry && !saxpy.external);
        assert_eq!(saxpy.params.iter().map(|p| p.bytes.unwrap()).collect::<Vec<_>>(), [8, 8, 4, 4]);
        let code = of(&module, "saxpy");
        let words: Vec<_> = code.iter().map(|i| i.words.join(".")).collect();
        assert_eq!(words.last().unwrap(), "ret");
        let fma = code.iter().find(|i| i.words == ["fma", "rn", "f32"]).unwrap();
        assert_eq!(fma.operands, ["%f4", "%f2", "%f1", "%f3"].map(Operand::Name));
        let branch = code.iter().find(|i| i.words == ["bra"]).unwrap();
        assert_eq!(branch.guard.map(|g| (g.register, g.negated)), Some(("%p1", false)));
        assert_eq!(branch.operands, [Operand::Name("$L__BB0_2")]);
    }
}

#[test]
fn calls_and_tables_are_read() {
    for name in ["calls.sm_90a", "calls.sm_100"] {
        let module = read(source(name));
        let variable = |name: &str| module.variables.iter().find(|v| v.name == name).expect(name);
        let square = Init::Address { name: "_Z6squaref", generic: false, offset: 0 };
        assert_eq!(variable("table").init[0], square);
        assert_eq!(variable("pointers").init[1], Init::Address { name: "values", generic: true, offset: 12 });
        assert_eq!((variable("weights").space, variable("weights").bytes), (Space::Const, Some(24)));
        assert_eq!((variable("dynamic").external, variable("dynamic").bytes), (true, None));
        let calls = function(&module, "calls");
        assert_eq!((calls.max_threads, calls.params[1].bytes, calls.params[1].align), (256, Some(32), 8));
        let code = of(&module, "calls");
        let indirect = code.iter().find(|i| i.words == ["call"]).unwrap();
        assert_eq!(indirect.operands.len(), 4);
        assert!(matches!(&indirect.operands[0], Operand::List(list) if list == &[Operand::Name("retval0")]));
        assert!(code.iter().any(|i| i.words[0] == "call" && i.operands[1] == Operand::Name("vprintf")));
        assert!(code.iter().any(|i| i.words[0] == "shfl" && matches!(i.operands[0], Operand::Pair(..))));
        let vprintf = module.functions.iter().find(|f| f.name == "vprintf").unwrap();
        assert!(vprintf.external && vprintf.body.is_none());
    }
}

#[test]
fn inline_assembly_is_read() {
    let module = read(source("inline_asm.sm_120"));
    let kernel = function(&module, "inline_asm");
    assert_eq!((kernel.max_threads, kernel.cluster), (256, Some([2, 1, 1])));
    assert_eq!((kernel.params[0].align, kernel.params[1].align), (16, 8));
    let code = of(&module, "inline_asm");
    let tensor = code.iter().find(|i| i.words.contains(&"tensor")).unwrap();
    assert_eq!(tensor.words[4..], ["2d", "shared::cluster", "global", "mbarrier::complete_tx::bytes"]);
    assert!(matches!(&tensor.operands[1], Operand::Tensor { base: "%rd5", offset: 0, parts } if parts.len() == 1));
    let elect = code.iter().find(|i| i.words[0] == "elect").unwrap();
    assert_eq!(elect.operands[0], Operand::Pair("_", "p"));
    assert!(code.iter().any(|i| i.guard.is_some_and(|g| g.register == "p" && g.negated)));
}

#[test]
fn debug_sections_are_passed() {
    let module = read(source("debug.sm_80"));
    assert_eq!(module.target, ["sm_80", "debug"]);
    assert_eq!(module.functions.len(), 2);
    let labels = function(&module, "debug").body.as_ref().unwrap();
    assert!(labels.iter().any(|s| matches!(s, Statement::Label("$L__func_begin1"))));
}

/// Reduced from a kernel with recursion, a table of functions and printf, for compute_80 and compute_90a.
#[test]
fn an_excerpt_with_every_kind_of_call() {
    let text = "//
// Generated by NVIDIA NVVM Compiler
//

.version 9.4
.target sm_90a
.address_size 64

.func  (.param .b32 func_retval0) _Z2sqf
(
	.param .b32 _Z2sqf_param_0
)
;
.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0,
	.param .b64 vprintf_param_1
)
;
.func  (.param .align 8 .b8 func_retval0[16]) __internal_trig_reduction_slowpathd
(
	.param .b64 __internal_trig_reduction_slowpathd_param_0
)
;
.global .align 4 .u32 counter;
.const .align 4 .b8 coef[16] = {0, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64};
.global .align 8 .u64 table[2] = {_Z2sqf, _Z2cuf};
// _ZZ4miscE4tile has been demoted
.global .align 1 .u8 _ZN26__nv_atomic_triv_cp_helperIiE5__valE;
.extern .shared .align 16 .b8 dyn[];
.global .align 1 .b8 $str[10] = {104, 105, 32, 37, 100, 32, 37, 102, 10};

	// .globl	misc
.visible .entry misc(
	.param .u64 misc_param_0,
	.param .align 8 .b8 misc_param_2[32]
)
{
	.local .align 16 .b8 	__local_depot4[48];
	.reg .b64 	%SP;
	.reg .pred 	%p<56>;
	.loc	1 9 0
	// demoted variable
	.shared .align 4 .b8 _ZZ4miscE4tile[1024];

	mov.u64 	%SPL, __local_depot4;
	ld.param.f64 	%fd6, [misc_param_2+8];
	{ // callseq 4, 0
	.reg .b32 temp_param_reg;
	.param .b32 param0;
	st.param.f32 	[param0+0], %f31;
	.param .b32 retval0;
	prototype_4 : .callprototype (.param .b32 _) _ (.param .b32 _);
	call (retval0),
	%rd31,
	(
	param0
	)
	, prototype_4;
	ld.param.f32 	%f32, [retval0+0];
	} // callseq 4
	{
	.reg .b32 %temp;
	mov.b64 	{%temp, %r25}, %fd1;
	}
	@%p43 bra 	$L__BB4_30;

	// begin inline asm
	trap;
	// end inline asm

$L__BB4_30:
	shfl.sync.bfly.b32 	%r78|%p46, %r76, %r73, %r77, %r74;
	atom.shared.cas.b32 	%r71, [%r18], %r67, %r69;
	st.global.v4.u32 	[%rd53], {%r84, %r81, %r82, %r83};
	ret;

}

	.file	1 \"misc.cu\"
";
    let module = read(text);
    assert_eq!((module.functions.len(), module.variables.len()), (4, 6));
    assert_eq!(module.functions[2].returns[0].bytes, Some(16));
    assert_eq!(module.variables[5].init.len(), 9);
    let words: Vec<_> = of(&module, "misc").iter().map(|i| i.words[0]).collect();
    let expected = ["mov", "ld", "st", "call", "ld", "mov", "bra", "trap", "shfl", "atom", "st", "ret"];
    assert_eq!(words, expected);
    let body = function(&module, "misc").body.as_deref().unwrap();
    assert!(body.iter().any(|s| matches!(s, Statement::Variable(v) if v.name == "_ZZ4miscE4tile")));
}
