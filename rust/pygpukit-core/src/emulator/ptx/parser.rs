//! Tokens to a module: directives of module scope, functions and their signatures.

use super::ast::{Function, Module, Space, Variable};
use super::lexer::{Kind, Lexer, Token};
use super::{ParseError, shorten};

/// Blocks, braces, brackets and parentheses inside one another; compilers stay far below, the stack far above.
const DEEPEST: u32 = 64;

/// Reads a PTX text.
///
/// The result borrows names from `text`. NUL bytes at its end, as compilers return them, are allowed.
pub fn parse(text: &str) -> Result<Module<'_>, ParseError> {
    let mut parser = Parser::new(text.trim_end_matches('\0'))?;
    parser.module()?;
    Ok(parser.module)
}

#[derive(Debug)]
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    depth: u32,
    /// Elements of initialisers that had to be filled in so far.
    pub(super) padding: usize,
    module: Module<'a>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Parser<'a>, ParseError> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Parser { lexer, token, depth: 0, padding: 0, module: Module::default() })
    }

    /// The token that comes next.
    pub(super) fn token(&self) -> Token<'a> {
        self.token
    }

    /// Takes the next token.
    pub(super) fn bump(&mut self) -> Result<Token<'a>, ParseError> {
        let next = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.token, next))
    }

    pub(super) fn is(&self, punct: &str) -> bool {
        matches!(self.token.kind, Kind::Punct(found) if found == punct)
    }

    /// Takes this punctuation if it comes next.
    pub(super) fn accept(&mut self, punct: &str) -> Result<bool, ParseError> {
        let found = self.is(punct);
        if found {
            self.bump()?;
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, punct: &str, place: &str) -> Result<(), ParseError> {
        if self.accept(punct)? { Ok(()) } else { Err(self.expected(&format!("`{punct}` {place}"))) }
    }

    pub(super) fn error_at(&self, token: Token<'a>, message: &str) -> ParseError {
        self.lexer.error(token.start, token.line, message)
    }

    /// The error that the next token is not `what`.
    pub(super) fn expected(&self, what: &str) -> ParseError {
        let message = match self.token.kind {
            Kind::End => format!("the text ends here, where {what} was expected"),
            _ => format!("found {}, expected {what}", self.token.describe()),
        };
        self.error_at(self.token, &message)
    }

    /// Goes one level down, if that is not too deep.
    pub(super) fn enter(&mut self) -> Result<(), ParseError> {
        if self.depth == DEEPEST {
            return Err(self.error_at(self.token, &format!("nested more than {DEEPEST} levels deep")));
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    pub(super) fn word(&mut self, what: &str) -> Result<&'a str, ParseError> {
        match self.token.kind {
            Kind::Word(word) => self.bump().map(|_| word),
            _ => Err(self.expected(what)),
        }
    }

    /// A plain integer that fits in 32 bits.
    pub(super) fn number(&mut self, what: &str) -> Result<u32, ParseError> {
        match self.token.kind {
            Kind::Int { value, .. } => {
                let number = u32::try_from(value).map_err(|_| {
                    self.error_at(self.token, &format!("{what} {} does not fit in 32 bits", self.token.text))
                })?;
                self.bump()?;
                Ok(number)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn module(&mut self) -> Result<(), ParseError> {
        if self.token.kind != Kind::Directive("version") {
            return Err(self.expected("`.version`, with which every PTX text starts"));
        }
        self.version()?;
        if self.token.kind != Kind::Directive("target") {
            return Err(self.expected("`.target` after `.version`"));
        }
        loop {
            match self.token.kind {
                Kind::End => return Ok(()),
                Kind::Directive(name) => self.module_directive(name)?,
                Kind::Punct(";") => {
                    self.bump()?;
                }
                _ => return Err(self.expected("a directive such as `.global`, `.func` or `.entry`")),
            }
        }
    }

    fn module_directive(&mut self, name: &'a str) -> Result<(), ParseError> {
        match name {
            "target" => self.target(),
            "address_size" => self.address_size(),
            "file" => self.file(),
            "section" => self.section(),
            "loc" => self.location().map(|_| ()),
            "pragma" => self.pragma(),
            "alias" => {
                Err(self.error_at(self.token, "`.alias` is not supported: use the function's own name in its place"))
            }
            "version" => Err(self.error_at(self.token, "found a second `.version`, expected one per text")),
            _ => self.symbol(),
        }
    }

    /// A function or variables, with their linkage.
    fn symbol(&mut self) -> Result<(), ParseError> {
        let external = self.linkage()?;
        let Kind::Directive(name) = self.token.kind else {
            return Err(self.expected("`.func`, `.entry` or a state space"));
        };
        if matches!(name, "func" | "entry") {
            let function = self.function(external)?;
            self.module.functions.push(function);
            return Ok(());
        }
        let space = match space(name) {
            Some(Space::Param | Space::Local) => {
                return Err(self.error_at(self.token, &format!("`.{name}` variables belong in a function")));
            }
            Some(space) => space,
            None => return Err(self.unknown_directive("at module scope")),
        };
        let mut variables = std::mem::take(&mut self.module.variables);
        self.variables(space, external, &mut |variable| variables.push(variable))?;
        self.module.variables = variables;
        Ok(())
    }

    pub(super) fn unknown_directive(&self, place: &str) -> ParseError {
        self.error_at(self.token, &format!("the directive {} is not supported {place}", self.token.describe()))
    }

    /// Takes `.visible`, `.weak`, `.extern` and `.common`; says whether `.extern` was there.
    pub(super) fn linkage(&mut self) -> Result<bool, ParseError> {
        let mut external = false;
        while let Kind::Directive(name @ ("visible" | "weak" | "extern" | "common")) = self.token.kind {
            external |= name == "extern";
            self.bump()?;
        }
        Ok(external)
    }

    fn version(&mut self) -> Result<(), ParseError> {
        self.bump()?;
        let version = self.token.text.split_once('.');
        let read = |part: &str| part.parse::<u32>().ok();
        let Some((Some(major), Some(minor))) = version.map(|(major, minor)| (read(major), read(minor))) else {
            return Err(self.expected("a version such as `8.0`"));
        };
        if !(8..=9).contains(&major) {
            let message = format!("this is PTX of version {major}.{minor}, and only versions 8 and 9 are supported");
            return Err(self.error_at(self.token, &message));
        }
        self.module.version = (major, minor);
        self.bump().map(|_| ())
    }

    fn target(&mut self) -> Result<(), ParseError> {
        self.bump()?;
        loop {
            let target = self.word("a target such as `sm_80`")?;
            self.module.target.push(target);
            if !self.accept(",")? {
                return Ok(());
            }
        }
    }

    fn address_size(&mut self) -> Result<(), ParseError> {
        self.bump()?;
        let token = self.token;
        match self.number("an address size")? {
            64 => Ok(()),
            size => Err(self.error_at(token, &format!("the address size is {size}, only 64 is supported"))),
        }
    }

    pub(super) fn file(&mut self) -> Result<(), ParseError> {
        self.bump()?;
        let index = self.number("the number of a file")?;
        let Kind::Text(name) = self.token.kind else {
            return Err(self.expected("the name of a file in double quotes"));
        };
        self.bump()?;
        self.module.files.push((index, unescape(name)));
        if self.accept(",")? {
            self.constant_integer()?;
            self.expect(",", "between a file's time and its size")?;
            self.constant_integer()?;
        }
        Ok(())
    }

    /// Passes over a section of debugging information.
    fn section(&mut self) -> Result<(), ParseError> {
        let section = self.bump()?;
        while matches!(self.token.kind, Kind::Directive(_) | Kind::Word(_)) {
            self.bump()?;
        }
        self.expect("{", "after the name of a section")?;
        let mut open = 1usize;
        while open > 0 {
            match self.token.kind {
                Kind::End => {
                    return Err(self.expected(&format!("`}}` that closes the section of line {}", section.line)));
                }
                Kind::Punct("{") => open += 1,
                Kind::Punct("}") => open -= 1,
                _ => {}
            }
            self.bump()?;
        }
        Ok(())
    }

    pub(super) fn pragma(&mut self) -> Result<(), ParseError> {
        self.bump()?;
        loop {
            let Kind::Text(_) = self.token.kind else {
                return Err(self.expected("a string of `.pragma`"));
            };
            self.bump()?;
            if !self.accept(",")? {
                return self.expect(";", "after `.pragma`");
            }
        }
    }

    /// `.loc file line column`: the place itself, without where it was inlined.
    pub(super) fn location(&mut self) -> Result<(u32, u32, u32), ParseError> {
        self.bump()?;
        let file = self.number("the file of `.loc`")?;
        let line = self.number("the line of `.loc`")?;
        let column = self.number("the column of `.loc`")?;
        while self.accept(",")? {
            let token = self.token;
            match self.word("`function_name` or `inlined_at`")? {
                "function_name" => {
                    self.word("the label of a function's name")?;
                    self.offset()?;
                }
                "inlined_at" => {
                    for what in ["the file of `inlined_at`", "its line", "its column"] {
                        self.number(what)?;
                    }
                }
                _ => {
                    let message = format!("found {}, expected `function_name` or `inlined_at`", token.describe());
                    return Err(self.error_at(token, &message));
                }
            }
        }
        Ok((file, line, column))
    }

    fn function(&mut self, external: bool) -> Result<Function<'a>, ParseError> {
        let head = self.bump()?;
        let entry = head.kind == Kind::Directive("entry");
        let mut function = Function { entry, external, line: head.line, ..Function::default() };
        self.attributes()?;
        if !entry && self.is("(") {
            function.returns = self.parameters()?;
        }
        function.name = self.word("the name of a function")?;
        if self.is("(") {
            function.params = self.parameters()?;
        }
        while let Kind::Directive(name) = self.token.kind {
            self.function_directive(name, &mut function)?;
        }
        match self.token.kind {
            Kind::Punct(";") => {
                self.bump()?;
            }
            Kind::Punct("{") => function.body = Some(self.block()?),
            _ => {
                let name = shorten(function.name);
                return Err(self.expected(&format!("`{{` or `;` after the signature of `{name}`")));
            }
        }
        Ok(function)
    }

    /// What may stand between a signature and its body.
    fn function_directive(&mut self, name: &'a str, function: &mut Function<'a>) -> Result<(), ParseError> {
        let token = self.token;
        match name {
            "attribute" => return self.attributes(),
            "pragma" => return self.pragma(),
            "noreturn" | "abi_preserve" | "abi_preserve_control" => return self.signature_directive(name),
            "maxntid" => {
                let [x, y, z] = self.extents()?;
                function.max_threads = x
                    .checked_mul(y)
                    .and_then(|threads| threads.checked_mul(z))
                    .ok_or_else(|| self.error_at(token, "the threads of `.maxntid` do not fit in 32 bits"))?;
            }
            "reqntid" => function.required_threads = Some(self.extents()?),
            "reqnctapercluster" => function.cluster = Some(self.extents()?),
            "explicitcluster" => {
                self.bump()?;
                function.cluster.get_or_insert_default();
            }
            "blocksareclusters" => {
                self.bump()?;
                function.blocks_are_clusters = true;
            }
            "unique" => {
                self.bump()?;
            }
            "maxnreg" | "minnctapersm" | "maxnctapersm" | "maxclusterrank" => {
                self.bump()?;
                self.number("the number of a directive")?;
            }
            _ => return Err(self.unknown_directive(&format!("for the function `{}`", shorten(function.name)))),
        }
        Ok(())
    }

    /// A directive that functions and prototypes share; it changes nothing here.
    pub(super) fn signature_directive(&mut self, name: &str) -> Result<(), ParseError> {
        match name {
            "noreturn" => self.bump().map(|_| ()),
            "abi_preserve" | "abi_preserve_control" => {
                self.bump()?;
                self.number("a number of registers").map(|_| ())
            }
            _ => Err(self.unknown_directive("for a prototype")),
        }
    }

    /// One to three numbers after a directive.
    fn extents(&mut self) -> Result<[u32; 3], ParseError> {
        self.bump()?;
        let mut extents = [1; 3];
        for (index, extent) in extents.iter_mut().enumerate() {
            if index > 0 && !self.accept(",")? {
                break;
            }
            *extent = self.number("a number of threads or blocks")?;
        }
        Ok(extents)
    }

    /// `(.param .b32 a, .param .b64 b)`
    pub(super) fn parameters(&mut self) -> Result<Vec<Variable<'a>>, ParseError> {
        self.bump()?;
        let mut parameters = Vec::new();
        if self.accept(")")? {
            return Ok(parameters);
        }
        loop {
            match self.token.kind {
                Kind::Directive("param") => parameters.push(self.parameter()?),
                Kind::Directive("reg") => {
                    return Err(self.error_at(self.token, "parameters in `.reg` are not supported: use `.param`"));
                }
                _ => return Err(self.expected("`.param`")),
            }
            if !self.accept(",")? {
                self.expect(")", "or `,` after a parameter")?;
                return Ok(parameters);
            }
        }
    }
}

/// The state space of a directive.
pub(super) fn space(name: &str) -> Option<Space> {
    Some(match name {
        "param" => Space::Param,
        "global" => Space::Global,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "const" => Space::Const,
        _ => return None,
    })
}

/// A file's name with `\\` and `\"` resolved; other backslashes are those of a Windows path.
fn unescape(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('\\', Some(&escaped @ ('\\' | '"'))) => {
                name.push(escaped);
                chars.next();
            }
            _ => name.push(c),
        }
    }
    name
}
