"""Normal forms, case by case: answers as models write them, and what each kind reads in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from focalroute.answers import normal_form

# What stands in one line has one form; those of a kind all differ from each other.
NUMBERS = {
    "42": (
        "42", "42.", "42.0", "042", "+42", "$42", "$42.00", "42%", "42 km", "4.2e1", "4.2 x 10^1", "84/2",
        "forty-two",
        "The answer is 42.", "the answer is: 42", "**Answer:** 42", "Answer: **42**", "Answer = 42", "**42**",
        "#### 42", "6 * 7 = 42\n#### 42", "\\boxed{42}", "$\\boxed{42}$", "Thus \\boxed{42} of the 50 are left.",
        "<think>maybe 41 or 43</think>42", "<think>The answer is 41.</think>\nSo the answer is 42.",
        "The answer is 42, as 6 * 7 = 42 and 6 + 7 = 13.", "The answer is 42. There are 7 days in a week.",
        "## Step 1\n6 * 7\n\n## Answer\n\n42", "Final answer: $42$ apples", "The final answer is $\\boxed{42}$.",
        "<answer>42</answer>", "First 5, then 37, so x = 42", "The answer should be 42 dollars.", "Answer:\n\n42",
        "The answer to how many there are is 6 * 7 = 42.", "My answer would be forty two.", "\uff14\uff12",
        "The answer is $6 \\times 7 = 42$", "Answer: 42 (not 43)", "The answer is **42** of 100",
        "To answer this question, we add: 5 + 2 = 7.\n\nTimes six it is 42.", "The answer is not 7 but 42.",
        "The answer to the question is: 42", "In all, **42** in 7 days",
        "17 + 25 = **42**\n\nLet me know if you need more!", "7 **and 42** in all",
        "So it is __42__ of them.\n\nHope that helps!", "答案是**42**个。\n\n还有问题吗", "**Total:** 42\n\nOk?",
        "Of the 7 it is **x_1 = 42**.\n\nAll right?", "The answer is not 7, it is 42.", "It is 42, not 43.",
        "There are 42 as of June 2023.", "It got 42 out of 50.", "42 is the 10th of them.",
        "Die Antwort ist 42, nicht 7.",
        "**42**\n\nAs 6 is even, add 6 to 36.\nThere are 7 of 6.", "Answer - 42", "答案是42。7不对",
        "La respuesta es 42.", "It is 42 rather than 7.", "42 instead of 7.", "It is 42 and not 7.",
        "There are 42 [1].", "It is 42.0 to 1 decimal place.", "[42]",
    ),
    "-3": ("-3", "minus 3", "It is negative 3.", "\N{EN DASH}3", "\N{MINUS SIGN}3", "-$3", "\\boxed{-3}",
            "The answer is -3.0", "minus three", "x = -3",
        "- 5 + 2 = -3"),
    "1234.5": ("1 234,5", "1.234,5", "1'234.5", "1234,5", "Insgesamt 1.234,50 €.", "1,234.5", "1234.50",
            "$1,234.50", "1{,}234.5", "1\\,234.5", "1\u202f234.5", "1_234.5", "\\$1,234.50"),
    "0.75": (
        "zero point seven five", "\\frac{1.5}{2}", "0.75", ".75", "3/4", "6/8",
        "3 / 4", "\\frac{3}{4}", "\\dfrac{3}{4}", "\\frac34", "¾", "three quarters",
        "The answer is 3/4 of the 20 apples.", "\\boxed{\\frac{3}{4}}", "7.5e-1", "three fourths", "0.5/(2/3) = 0.75",
    ),
    "3.5": ("3-1/2", "The answer is 3-1/2 cups.", "three point five", "three-and-a-half",
        "3.5", "3 1/2", "3½", "7/2", "3\\frac{1}{2}", "three and a half", "3 and a half", "35 x 10^-1",
            "It takes 3.5 hours (3 hours and 30 minutes).", "Seven halves (3.5)"),
    "-1/3": ("-0.\\overline{3}", "\\boxed{\\frac{-1}{3}}", "-1/3", "-2/6",
        "-\\frac{1}{3}", "minus one third", "\N{MINUS SIGN}1/3"),
    "0.33": ("0.33", "33/100", "0,33", "Es sind 0,33."),
    "0.125": ("0.125", "0,125"),
    "42000": ("4️⃣2️⃣000", "**4️⃣2️⃣0️⃣0️⃣0️⃣**"),
    "12345678": ("12 345 678", "1,23,45,678", "₹1,23,45,678"),
    "12345": ("12 345", "Il y en a 12 345.", "1.2345万人"),
    "200000000": ("2亿", "2億人", "答案是2亿。"),
    "3.46": ("2√3 ≈ 3.46", "2\\sqrt{3} = 3.46", "1.1\\pi is 3.46"),
    "7": ("10 minus 3 is 7", "pages 5\N{EN DASH}7", "(1,2,7)", "1,2,7"),
    "2500000": (
        "2½ million", "\\boxed{2\\frac{1}{2}\\text{ million}}", "\\boxed{2.5} million", "two and a half million",
        "two point five million", "2 and a half million", "$2.5 M", "2.5 M€", "2.5M USD", "USD 2.5m", "$2.5MM",
        "There are **2.5** million.", "Answer: $2.5$ million", "2.5-million", "25 lakh",
        "$2.5M", "It costs $2.5m.", "2.500.000", "2.500.000,00 €", "\\$2.5M",
    ),
    "500000": (
        "Half a million.", "About half a million people.", "The answer is half a million.", "a half million",
        "5 hundred thousand", "1/2 of a million", "In 2023, about half a million people lived there.", "$500k",
    ),
    "750000": ("three quarters of a million", "3/4 of a million", "750k"),
    "2500": ("two and a half thousand", "2.5k", "twenty-five hundred"), "24": ("two dozen", "2 dozen", "24"),
    "6": ("half a dozen", "6"), "3.05": ("three point oh five", "3.05"), "300": ("300 K", "$300 K$"), "0.1": ("0.1 M",),
    "-2.5": ("minus two point five", "x = - 2.5"), "30000000": ("3千万",), "5000": ("5千", "5.000 €"),
    "3000000000": ("3 bn", "$3B", "€3bn"),
    "3000000": ("3 million", "3,000,000", "3e6", "3 \u00d7 10⁶", "3 \\times 10^{6}", "three million", "$3 million"),
    "1024": ("2^10", "2^{10}", "2**10", "2 ** 10", "x**2 is 1024", "1,024", "one thousand and twenty-four",
            "The answer is 2^{10} bytes"),
    "25": ("25 m^2", "25 m²", "25 cm^{2}", "25 m^2 in all, so x_1", "twenty-five"),
    "121": ("one hundred and twenty-one", "121"),
    "0": ("0", "zero", "-0", "0/5", "0.00", "The answer is zero."),
    "0.5": ("half", "a half", "1/2", "one half", "Half of them."),
    "1": ("one", "The answer is one.", "1"),
    None: (
        "", "none", "I do not know.", "<think>42", "3:30", "2024-05-13", "03/04/2024", "1.2.3", "5/0", "which one?",
        "The answer is", "So the final answer is:", "<think>6 * 7 = 42", "five six", "\\boxed{2\\pi}",
            "\\boxed{\\sqrt{2}}",
        "√2/2", "25π", "The answer is 2\\sqrt{3}.",
        # of an unclear scale
        "5M", "300K", "7B", "3 Millionen", "3 millones", "5 Mio. €", "2 milliards", "3 milhões", "5 млн", "3 mil",
        "3 quintillion", "7 tenths", "2 million 500 thousand", "1万2千", "a million and a half", "3 million and a half",
        "a few hundred", "several million", "hundreds of thousands", "Millions of people", "two thousand million",
        "point five", "three point fourteen", "3 and 1/2", "0x1F", "2024-05-13 10:00:00.123",
        "Of the 5 we need some.\n\nThat makes 7M.",
    ),
}  # fmt: skip

SHORT = {
    "paris": (
        "Paris", "paris.", "PARIS!", "**Paris**", "The answer is Paris.", "Answer: Paris", "Answer: **Paris**.",
        "“Paris”",
        "It starts with a P.\n\nParis", "The answer is Paris, because it is.", "Final answer: \\boxed{\\text{Paris}}",
        "\\text{Paris}", "$\\text{Paris}$", "<think>London?</think>Paris", "<answer>Paris</answer>", "#### Paris",
        "The answer is Paris. It lies on the Seine.", "It is **Paris** on the Seine", "Answer:\nParis\n\n---",
        "The correct answer would be: `Paris`", "To answer this, think: on the Seine.\nParis",
        "**Paris**\n\nIt has been the capital since 987.", "It is **Paris**.\n\nIt lies on the Seine.",
        "Antwort: Paris",
        "La réponse est **Paris**.", "Die Antwort ist Paris.", "Réponse : Paris",
        "The answer is not London but Paris.",
        "The correct answer is **Paris**, not Lyon.", "The answer is Paris, which lies on the Seine.", "- Paris",
        "# Paris",
        "The answer is Paris, as it is the seat of the government.", "So the answer is:\n\n> Paris", "\u2022 Paris",
        "Final answer \u2014 Paris", "The answer is \\(\\text{Paris}\\).", "Paris \u2705",
        "Paris \U0001f1eb\U0001f1f7",
        "Paris<|im_end|>", "Paris</s>", "The capital of France is Paris.", "It's Paris!", "I believe it is **Paris**.",
        "Lyon is **not** the capital.\n\nParis", "The capital of France is Paris, which lies on the Seine.",
        "I think that would be Paris. It is on the Seine.", "**Capital**: Paris", "**Capital:** Paris",
        "Paris.\n\nParis is the capital of France.", "Let me think.\n\nIt is Paris.",
        "France.\n\nIts capital is\n\nParis",
        "Paris\n\nHope this helps!", "Paris\n\nLet me know if you have questions.", "Paris [1].", "Paris.[1][2]",
    ),
    "paris (france)": ("Paris (France)", "Paris (France).", "**Paris (France)**", "It is \"Paris (France)\"."),
    "f(g(x))": ("f(g(x))",), "(paris) (france)": ("(Paris) (France)",), "(+) x": ("(+) x.",),
    "nile": ("The Nile.\n\nThe Nile flows for 6,650 km.",), "new york": ("New\n\nNew York",),
    "mount everest": ("Mount Everest\n\nMount Everest, at 8,849 m, is the highest.",),
    "great gatsby": ("The Great Gatsby", "The \"Great Gatsby\"", "\u201cThe\u201d Great Gatsby", "«Great» Gatsby"),
    "new york city": ("New York City", "new  york city", "The New York City", "New-York City",
        "Answer: the New York city"),
    "st petersburg": ("St. Petersburg", "The answer is St. Petersburg. It is cold.", "St Petersburg"),
    "jk rowling": ("J. K. Rowling", "The answer is J. K. Rowling.", "J.K. Rowling",
        "The author of the books was J. K. Rowling."),
    "nile: the longest river": ("**Nile**: the longest river",),
    "nile is the longest river": ("The Nile is the longest river.",), "this is us": ("This Is Us",),
    "not paris": ("It is not Paris.", "It is not **Paris**."), "lodz": ("Łódź", "Lodz"),
    "aeneid": ("Æneid", "the Aeneid"),
    "h2o": ("H2O", "H\u2082O", "$\\text{H}_2\\text{O}$", "H_{2}O"),
    "北京": ("北京", "答案\uff1a北京", "答案是北京。", "北京。", "「北京」", "《北京》、"),
    "berlin": ("Berlin", "„Berlin“", "«Berlin»",
        "¡Berlin!"),
    "दिल्ली": ("दिल्ली", "दिल्ली।"), "القاهرة": ("القاهرة", "القاهرة؟"),
    "usa": ("USA", "U.S.A.", "the USA", "U.S.A", "The U.S.A."),
    "sao paulo": ("S\u00e3o Paulo", "Sao Paulo", "Sa\u0303o Paulo", "the answer is S\u00c3O PAULO"),
    "strasse": ("Straße", "STRASSE"),
    "o'neill": ("O'Neill", "O\u2019Neill", "o'neill."),
    "salt and pepper": ("salt & pepper", "Salt and pepper"),
    "1000000": ("1,000,000", "1000000"),
    "-4": ("-4",), "3.5": ("3.5",), "a": ("A", "(a)", "a."), "й": ("й", "Й"), "и": ("и",),
    None: ("", "...", "\n", "The answer is:", "<think>Paris", "---"),
}  # fmt: skip

VERDICTS = {
    "yes": (
        "Yes", "yes.", "YES!", "**Yes**", "y", "True", "Correct.", "Yes, since 7 is prime.", "The answer is yes.",
        "T",
        "The statement is true.", "Answer: Yes", "\\boxed{\\text{True}}", "It is not false.", "Right.", "#### yes",
        "No reason speaks against it.\nSo yes.", "Some say no.\nThe answer is yes, not no.", "1", "affirmative",
        "The answer is Yes. No other is possible.", "Yes.\n\nNo other planet is larger.",
            "<think>no</think>yes", "Yes.\n\nIt has two divisors.", "Absolutely.", "Of course!", "Oui", "Ja.", "是的。",
            "Да",
        "**Yes.**\n\nIt is false that it has other divisors.", "Ja, das stimmt.", "**Oui**, 7 est premier.",
        "Sí. El 7 no tiene divisores.", "是的\uff0c7是质数。", "はい、そうです。", "네, 맞습니다.",
        "Antwort: Ja, sicher.", "Indeed.",
        "It is true.\n\nLet me know if that is not correct.", "It is **not** false.",
        "Not only is it true, it is obvious.", "7 is not even, so the statement is correct.",
    ),
    "no": (
        "No", "no.", "**No**", "n", "False", "Incorrect", "No. It isn't.", "The answer is no.", "It is not true.",
        "nope",
        "This isn't correct.", "Answer: false", "\\boxed{No}", "Wrong.", "0", "The claim is not really true.",
        "untrue",
        "No.\n\n**Explanation:** It's correct that they live in water, but they are mammals.", "Definitely not.",
        "Not really.", "Nein", "いいえ", "否", "No it is not", "\u274c No",
        "No, that cannot be, though some say it is true.", "Yes would be wrong.\nHence: no", "Nein, das ist falsch.",
        "The statement is *not* true.", "It is hardly true.", "That is far from true.",
        "It is not **true**.", "It is **never** true.", "That cannot be true.",
        "It does **not** appear to be correct.", "I don't think it's true.", "No, 9 is **not** prime.", "__No__",
        "**Verdict**: No",
        "Não, o 9 é divisível por 3.", "不是\uff0c9不是质数。",
    ),
    None: ("", "It depends.", "There is no evidence", "They say both yes and no.", "Yes / No",
        "Partially correct.", "It is only partly true.",
        "Yes and no.",
        "No such number exists.", "<think>yes", "42", "Right, let me see: it depends.", "Ja oder nein."),
}  # fmt: skip

DATES = {
    "2024-03-03": (
        "2024-03-03", "3 March 2024", "March 3, 2024", "March 3rd, 2024", "3rd of March, 2024",
        "Sunday, 3 March 2024",
        "03/03/2024", "3.3.2024", "2024/3/3", "2024.03.03", "Mar 3, 2024", "3 Mar. 2024", "the 3rd of March of 2024",
        "The answer is March 3, 2024.", "From 1 May 2023 to 3 March 2024", "\\boxed{3 March 2024}", "03-Mar-2024",
        "MARCH 3RD 2024", "2024-03-03T00:00", "The answer is 3 March 2024, not 4 March 2024.", "March the 3rd, 2024",
        "the 3rd of March in 2024", "The answer is not March 4, 2024 but March 3, 2024.",
        "It is **not** March 4, 2024 but March 3, 2024.",
        "On **March 3, 2024**.\n\nIt was sent on March 1, 2024.", "3. März 2024", "Es war am 3. März 2024.",
        "3 mars 2024", "3 de marzo de 2024", "3 marzo 2024", "3 de março de 2024", "3 maart 2024", "3 марта 2024",
        "Die Antwort ist der 3. März 2024.",
    ),
    "2024-03-04": ("2024年3月4日", "答案是2024年3月4日。", "2024년 3월 4일입니다", "03/04/2024", "3/4/2024",
        "03-04-2024", "4.3.2024", "04.03.2024"),
    "2024-01-01": ("1er janvier 2024", "1. Januar 2024", "1 de enero del 2024", "1º de janeiro de 2024"),
    "2024-06": ("1. May 2024\n2. June 2024", "juin 2024"), "--08-15": ("le 15 août", "15. August"),
    "2024-12-31": ("31/12/2024", "12/31/2024", "31.12.2024", "31 Dec 2024"),
    "2024-03": ("March 2024", "2024-03", "in March of 2024", "Mar. 2024", "March, 2024"),
    "--03-03": ("3 March", "March 3rd", "the 3rd of March", "--03-03"),
    "2024": ("2024", "in 2024", "The year was 2024."),
    "--02-29": ("29 February", "Feb 29"), "2000-02-29": ("29 February 2000",), "1999-09-01": ("Sept. 1, 1999",),
    "0476-09-04": ("September 4, 476", "4 September 476 AD", "On September 4, 476, Rome fell.", "0476-09-04"),
    "0079-08-24": ("0079-08-24",), "--03-05": ("March 5, 10:30", "March 5, 10 am", "March 5 - 10:30"),
    "2023-12-12": ("2023, December 12", "2023 December 12", "2023, 12 December", "2023-Dec-12"),
    "2024-04-05": ("From 3 March 2024 to April 5, 2024",),
    None: (
        "4 September 99", "Sep 4 '99", "24 August AD 79", "March 15, 44 BC", "15 March 1044 BC", "1200 BC",
        "March 3\u20135, 2024", "3\u20135 March 2024", "March 3 to 5, 2024", "3 and 5 March", "3/5 March 2024",
        "On March 3, 500 people died.", "Sent on 2024-01-01.\n\nAnswer: Sep 4 '99",
        "Sent on 2024-01-01.\n\nAnswer: 30 February 2024", "", "30 February 2024", "13.13.2024",
        "2023-02-29", "soon", "<think>2024-03-03", "the 3rd", "03/04/24",
    ),
}  # fmt: skip

MATHS = {
    "0.5": ("1/2", "0.5", "\\frac{1}{2}", "\\dfrac12", "$\\frac12$", "\\boxed{\\frac{1}{2}}", "2^{-1}", "50/100", "½",
            "x = \\frac{1}{2}", "\\frac{1}{2}\\text{ cm}", "\\left(\\frac{1}{2}\\right)", "2x = 1",
            "\\sqrt{\\frac14}"),
    "42": ("42", "42.0", "42 apples", "42\\%", "42^\\circ", "42^{\\circ}", "42°", "\\$42", "42\\text{ square units}",
           "42 cm^2", "42\\,\\mathrm{m/s}", "6 \\cdot 7", "6 \\times 7", "x=42", "42 = x", "x_1 = 6*7 = 42",
           "#### 42",
           "**Result**: $42$",
           "**Answer:** $42$", "The answer is $42$ dollars.", "We get $6 + 7 = 13$, and so $42$.", "\\frac{126}{3}",
           "\\(42\\)", "The answer is \\(42\\).", "\\approx 42", "x \\approx 42", "42 \\approx 42.1",
           "For $n = 3$, $x = 42$."),
    "sqrt(2)/2": ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", "1/sqrt(2)", "\\sqrt{1/2}", "√2/2",
        "\\frac{\\sqrt2}2",
                  "\\sin 45^\\circ = \\frac{\\sqrt{2}}{2}", "\\frac{\\sqrt2}{2} \\approx 0.707", "\\frac{2}{\\sqrt8}",
                  "2^{-1/2}", "\\sqrt{0.5}"),
    "sqrt(2)-1": ("\\sqrt{2}-1", "\\frac{1}{1+\\sqrt{2}}", "-1+2^{1/2}"),
    "2*sqrt(3)": ("2\\sqrt{3}", "\\sqrt{12}", "2 sqrt(3)", "\\sqrt{2}\\cdot\\sqrt{6}", "\\frac{6}{\\sqrt3}"),
    "x^2-1": ("x^2-1", "(x-1)(x+1)", "-1+x^2", "x^{2}-1", "x²-1", "x*x - 1", "\\left(x+1\\right)\\left(x-1\\right)",
              "\\frac{x^3-x}{x}", "y = x^2 - 1", "f(x) = (x+1)(x-1)",
              "f^{-1}(x) = x^2 - 1", "$$x^2-1$$\n\nwhich is what we wanted.", "**x^2-1**\n\nThat is how it ends."),
    "2*x+3": ("f'(x) = 2x + 3", "\\boxed{\\frac{dy}{dx} = 2x + 3}", "y' = 3+2x"), "36*pi": ("36\\pi\\text{ cm}^3",
        "36\\pi"),
    "x+1": ("x+1", "\\frac{x^2-1}{x-1}", "1 + x", "(2x+2)/2"),
    "(x+1)/(x^2+1)": ("\\frac{x+1}{x^2+1}", "(2x+2)/(2x^2+2)"),
    "2*pi*r": ("2\\pi r", "2πr", "2*pi*r", "r \\cdot 2\\pi"),
    "pi/2": ("\\frac{\\pi}{2}", "\\pi/2", "0.5\\pi", "\\frac12\\pi"),
    "2*i+3": ("3+2i", "2i + 3", "3 - 2i^3"),
    "2": ("2", "\\sqrt{4}", "\\sqrt[3]{8}", "8^{1/3}", "|{-2}|", "2!", "\\binom{2}{1}"),
    "2, -3": ("x=2 or x=-3", "2, -3", "-3, 2", "\\{-3, 2\\}", "x = 2, x = -3", "-3 \\text{ or } 2",
        "x \\in \\{2, -3\\}", "The solutions are $x = 2$ and $x = -3$.", "Hence $x = 2$ or $x = -3$.",
              "\\frac{-1 \\pm 5}{2}"),
    "(1, 2)": ("(1,2)", "( 1 , 2 )", "\\left(1, 2\\right)", "(x, y) = (1, 2)", "x=1, y=2", "y = 2, x = 1",
        "$x = 1$ and $y = 2$", "(\\frac{2}{2}, 2)"),
    "(2, 1)": ("(2,1)",),
    "[1, 2)": ("[1,2)", "x \\in [1, 2)"),
    "(-infinity, 2]\\cup (3, 5)": ("(-\\infty, 2] \\cup (3, 5)", "(3,5)\\cup(-\\infty,2]", "(-∞,2]\u222a(3,5)"),
    "x<5": ("x < 5", "5 > x", "x \\lt 5", "<answer>x < 5</answer>", "First <answer>2</answer>, now <answer>x<5"),
    "1<=x<2": ("1 \\le x < 2", "2 > x \\geq 1", "1≤x<2"),
    "x+y-1=0": ("x + y = 1", "2x + 2y = 2", "1 = x+y", "x+y-1=0"),
    "sin(x)^2": ("\\sin^2 x", "\\sin^2(x)", "(sin x)^2"), "pow(e, 2*x)": ("e^{2x}", "e^{x+x}", "\\exp(2x)"),
    "there is no real solution": ("We get $x^2=-1$.\n\nThere is no real solution.",),
    "so it is quite hard": ("So it is quite hard.",),
    "no solution": ("No solution.", "\\text{no solution}", "The answer is: no solution"),
    "\\emptyset": ("\\emptyset", "∅", "\\varnothing"),
    "1024": ("2^{10}", "1024", "1,024", "1\\,024", "1\\ 024", "1{,}024", "1\u202f024"),
    "(1, 2, 3)": ("(1,2,3)",), "1, 2, 3": ("1,2,3", "3, 2, 1", "\\{1,2,3\\}"),
    "3.5": ("3\\frac{1}{2}", "3 1/2", "\\frac{7}{2}"), "x/y": ("\\frac{x}{y}", "x y^{-1}", "\\frac{x^2}{xy}"),
    "120": ("5!", "120"), "x_1+x_2": ("x_1+x_2", "x_{2}+x_{1}"), "a*b": ("ab", "ba", "a\\cdot b"),
    "east": ("east", "East", "\\text{east}"), "seat": ("seat",), "\\alpha+1": ("1+\\alpha",),
    "1*10^100": ("10^{100}", "1e100", "1E+100", "10^{99} \\cdot 10", "x = 10^{100}", "2x = 2 \\cdot 10^{100}"),
    "E+100": ("E+100",), "1*10^-50": ("10^{-50}",), "1000": ("1e3", "10^3"), "2*e-1": ("2e-1",),
    "2500000": ("2.5 million", "\\boxed{2.5\\text{ million}}", "The answer is $2.5$ million.",
        "2\\frac{1}{2}\\text{ million}"),
    "1/3": ("1/3", "0.\\overline{3}", "$0.\\overline{3}$"), "14/11": ("1.\\overline{27}",),
    None: ("", "...", "<think>x+1", "The answer is:"),
}  # fmt: skip

TABLES = {"number": NUMBERS, "short": SHORT, "yes-no": VERDICTS, "date": DATES, "math": MATHS}


def cases() -> Iterator[tuple[str, str, str | None]]:
    for kind, table in TABLES.items():
        for form, texts in table.items():
            yield from ((kind, text, form) for text in texts)


CASES = list(cases())


@pytest.mark.parametrize(("kind", "text", "form"), CASES)
def test_an_answer_has_this_form(kind: str, text: str, form: str | None) -> None:
    assert normal_form(text, kind) == form


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, table in TABLES.items() for form in table if form])
def test_a_form_is_its_own_form(kind: str, form: str) -> None:
    assert normal_form(form, kind) == form


def test_the_table_is_long_enough_to_mean_something() -> None:
    assert len(CASES) == len({(kind, text) for kind, text, _ in CASES}) >= 300
